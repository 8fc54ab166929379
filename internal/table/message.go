package table

import "slices"

// IsMessageTable reports whether the table has the shape of schema/topic.sql, so
// that its rows are messages: an id that is its key, created_at, headers and
// payload. The payload may be any binary or text type. Other columns
// are allowed if a publisher can omit them.
func (t *Table) IsMessageTable() bool {
	if t.IsView {
		return false
	}
	found := 0
	for _, c := range t.Columns {
		switch c.Name {
		case "id":
			if c.DataType != "bigint" || !c.Unsigned || !c.AutoIncrement || !slices.Equal(t.PrimaryKey(), []string{"id"}) {
				return false
			}
		case "created_at":
			if c.ColumnType != "timestamp(6)" || !c.HasDefault {
				return false
			}
		case "headers":
			if !c.IsJSON || !c.Nullable {
				return false
			}
		case "payload":
			if c.Nullable || c.Generated || !isPayload(c.DataType) {
				return false
			}
		default:
			if !c.HasDefault {
				return false
			}
			continue
		}
		found++
	}
	return found == 4
}

// FurtherColumns returns the names of a message table's further columns that a copy of a row may have too: an INSERT may set them, and
// they do not make the copy equal to the row in a unique index.
func (t *Table) FurtherColumns() (names []string) {
	for _, c := range t.Columns {
		own := c.Name == "id" || c.Name == "created_at" || c.Name == "headers" || c.Name == "payload"
		unique := slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Unique && i.Columns[len(i.Columns)-1] == c.Name })
		if !own && !unique && !c.Generated {
			names = append(names, c.Name)
		}
	}
	return names
}

func isPayload(dataType string) bool {
	switch dataType {
	case "tinyblob", "blob", "mediumblob", "longblob", "varbinary",
		"tinytext", "text", "mediumtext", "longtext", "varchar":
		return true
	}
	return false
}
