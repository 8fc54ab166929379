package table

import (
	"encoding/json"
	"testing"
)

// benchmarkRow is a typical row of a shop, in the driver's types.
func benchmarkRow() (*Encoder, []any) {
	columns := []Column{
		{Name: "id", DataType: "bigint", Unsigned: true},
		{Name: "created_at", DataType: "timestamp"},
		{Name: "customer", DataType: "varchar"},
		{Name: "total", DataType: "decimal"},
		{Name: "weight", DataType: "double"},
		{Name: "details", DataType: "json", IsJSON: true},
		{Name: "note", DataType: "text"},
		{Name: "signature", DataType: "varbinary"},
	}
	return NewEncoder(columns), []any{
		int64(123456789), []byte("2026-11-21 13:14:15.000016"), []byte("Зоя <zoe@example.com>"),
		[]byte("1234.50"), 0.1, []byte(`{"items": [{"sku": "A-1", "n": 3}, {"sku": "B-2", "n": 1}]}`),
		nil, []byte("0123456789abcdef0123456789abcdef"),
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	b.Run("shop", func(b *testing.B) {
		e, values := benchmarkRow()
		benchmarkAppend(b, e, values)
	})
	b.Run("message", func(b *testing.B) {
		benchmarkAppend(b, NewEncoder([]Column{
			{Name: "id", DataType: "bigint"}, {Name: "created_at", DataType: "timestamp"},
			{Name: "headers", DataType: "json", IsJSON: true}, {Name: "payload", DataType: "longblob"},
		}), []any{int64(1), []byte("2026-11-21 13:14:15.000016"), nil, []byte("a payload of some thirty bytes")})
	})
	b.Run("64KiB-text", func(b *testing.B) {
		benchmarkAppend(b, NewEncoder([]Column{{Name: "body", DataType: "mediumtext"}}), []any{make64KiB()})
	})
}

func benchmarkAppend(b *testing.B, e *Encoder, values []any) {
	line, err := e.AppendJSON(nil, values)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		line, _ = e.AppendJSON(line[:0], values)
	}
}

func make64KiB() []byte {
	text := make([]byte, 64<<10)
	for i := range text {
		text[i] = byte(' ' + i%90)
	}
	return text
}

// The yardstick: the cost of writing the row with encoding/json.
func BenchmarkMarshalMap(b *testing.B) {
	_, values := benchmarkRow()
	row := map[string]any{
		"id": values[0], "created_at": string(values[1].([]byte)), "customer": string(values[2].([]byte)),
		"total": string(values[3].([]byte)), "weight": values[4], "details": json.RawMessage(values[5].([]byte)),
		"note": values[6], "signature": values[7],
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(row); err != nil {
			b.Fatal(err)
		}
	}
}
