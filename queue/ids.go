package queue

import (
	"slices"
	"strconv"
)

func idsOf(tasks []Task) []uint64 {
	ids := make([]uint64, len(tasks))
	for i, t := range tasks {
		ids[i] = t.ID
	}
	return ids
}

// runFrom is how many ids in a row are a range: to read on costs the server less than to look each of them up.
const runFrom = 8

// among is the condition to be one of the ids, in their order: who updates several rows takes their locks in
// the same order as everybody else. What follows a range is read, and locked, to find its end; so the last id of a
// run stands for itself, and the range's end is a task that is meant.
func among(ids []uint64) string {
	ids = slices.Sorted(slices.Values(ids))
	condition := make([]byte, 0, 16+8*len(ids))
	condition = append(condition, '(')
	var others []uint64
	for len(ids) > 0 {
		n := 1
		for n < len(ids) && ids[n] == ids[n-1]+1 {
			n++
		}
		if n >= runFrom {
			condition = append(condition, "id BETWEEN "...)
			condition = strconv.AppendUint(condition, ids[0], 10)
			condition = append(condition, " AND "...)
			condition = strconv.AppendUint(condition, ids[n-2], 10)
			condition = append(condition, " OR "...)
			ids, n = ids[n-1:], 1
		}
		others = append(others, ids[:n]...)
		ids = ids[n:]
	}
	condition = append(condition, "id IN ("...)
	for i, id := range others {
		if i > 0 {
			condition = append(condition, ',')
		}
		condition = strconv.AppendUint(condition, id, 10)
	}
	return string(append(condition, "))"...))
}
