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

// runFrom is the minimum number of consecutive ids for a range: reading on then costs the server less than looking up every id.
const runFrom = 8

// among returns the condition that an id is one of the ids, sorted, so that all statements that update several rows lock them in
// the same order. To find the end of a range the server reads, and locks, the row after it. The last id of a
// run is therefore separate, so that this row is one of the tasks.
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
