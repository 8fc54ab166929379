package mqnotify

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx/reflectx"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// encode returns the payload of a value.
func encode[T any](value T) ([]byte, error) {
	switch v := any(&value).(type) {
	case *[]byte:
		return *v, nil
	case *json.RawMessage:
		return *v, nil
	case *string:
		return []byte(*v), nil
	}
	payload, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("mqnotify: %w: a %T can't be encoded as JSON: %w", notify.ErrOptions, value, err)
	}
	return payload, nil
}

// decode is the inverse of encode. Its error wraps ErrDead, because another attempt would fail as well.
func decode[T any](payload []byte) (value T, err error) {
	switch v := any(&value).(type) {
	case *[]byte:
		*v = payload
	case *json.RawMessage:
		*v = payload
	case *string:
		*v = string(payload)
	default:
		if err = json.Unmarshal(payload, v); err != nil {
			err = fmt.Errorf("mqnotify: %w: the payload is not the JSON of a %T: %w", ErrDead, value, err)
		}
	}
	return value, err
}

// decoder decodes messages and rows.
type decoder[T any] struct {
	fields map[string][]int // the fields of T by column; nil unless T is a struct with db tags or a pointer to one
	wrong  error            // why T can't hold a row
}

var tags = reflectx.NewMapper("db")

func newDecoder[T any]() *decoder[T] {
	d := &decoder[T]{}
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return d
	}
	for name, field := range tags.TypeMap(t).Names {
		_, tagged := field.Field.Tag.Lookup("db")
		if !tagged {
			continue
		}
		outer := field.Parent
		var wrong error
		for ; outer.Embedded; outer = outer.Parent {
			if _, named := outer.Field.Tag.Lookup("db"); named {
				wrong = fmt.Errorf("mqnotify: %w: the embedded %v of %v has a db tag: remove the tag, or give the field a name", notify.ErrOptions, outer.Field.Type, t)
			} else if outer.Field.Type.Kind() == reflect.Pointer && !outer.Field.IsExported() {
				wrong = fmt.Errorf("mqnotify: %w: Go can't set the embedded pointer %v of %v: embed the struct itself", notify.ErrOptions, outer.Field.Type, t)
			}
		}
		if wrong != nil && outer.Parent == nil { // otherwise it is a field of a field
			d.wrong = wrong
		}
		// A name with a dot is a field of a field. Its column may hold the JSON of the outer field.
		if !strings.Contains(name, ".") {
			if d.fields == nil {
				d.fields = make(map[string][]int)
			}
			d.fields[name] = field.Index
		}
	}
	return d
}

// check returns an error if a db tag of T names a column that the table, or the list of columns if it is not empty, lacks.
// Otherwise every row would become a dead letter.
func (d *decoder[T]) check(ctx context.Context, db *notify.DB, topic string, columns []string) error {
	if d.wrong == nil && d.fields == nil {
		return nil
	}
	t, err := table.Describe(ctx, db.Pool(), db.Name(), topic)
	if err != nil || t.IsMessageTable() && len(columns) == 0 {
		return err
	}
	if d.wrong != nil {
		return d.wrong
	}
	var names []string // as the rows have them; columns may have another letter case
	for _, name := range columns {
		c, err := t.Column(name)
		if err != nil {
			return fmt.Errorf("mqnotify: %w", err)
		}
		names = append(names, c.Name)
	}
	if len(columns) == 0 {
		for _, c := range t.Columns {
			if !c.Invisible { // SELECT * leaves these out
				names = append(names, c.Name)
			}
		}
	}
	for name := range d.fields {
		if !slices.Contains(names, name) {
			return fmt.Errorf("mqnotify: %w: %T has the db tag %q, and the rows of %s have no such column", notify.ErrOptions, *new(T), name, topic)
		}
	}
	return nil
}

func (d *decoder[T]) message(m consumer.Message) (value T, err error) {
	if !m.IsRow || d.fields == nil {
		return decode[T](m.Payload)
	}
	var row map[string]json.RawMessage
	if err := json.Unmarshal(m.Payload, &row); err != nil {
		return value, fmt.Errorf("mqnotify: %w: row %d: %w", ErrDead, m.ID, err)
	}
	target := reflect.ValueOf(&value).Elem()
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
		target = target.Elem()
	}
	for column, index := range d.fields {
		raw, ok := row[column]
		isBytes := m.IsBase64(column)
		if !ok { // a text that is not UTF-8 is encoded in base64
			raw, ok = row[column+"_base64"]
			isBytes = true
		}
		null := string(raw) == "null"
		if !ok { // a JSON column that holds the JSON value null
			if _, ok = row[column+"_json"]; ok {
				raw = json.RawMessage("null")
			}
		}
		if null {
			raw = nil
		}
		if !ok { // not ErrDead: the table changed after check, and may be repaired
			return value, fmt.Errorf("mqnotify: row %d of %s has no column %q, which %T has in a db tag", m.ID, m.Topic, column, value)
		}
		if err := set(reflectx.FieldByIndexes(target, index), raw, isBytes); err != nil {
			return value, fmt.Errorf("mqnotify: %w: row %d of %s: column %q: %w", ErrDead, m.ID, m.Topic, column, err)
		}
	}
	return value, nil
}

var errNull = errors.New("it is NULL: make the field a pointer or a sql.Null")

// set assigns the value of a column to a field; raw is nil if the value is NULL.
func set(field reflect.Value, raw json.RawMessage, isBytes bool) error {
	null := raw == nil
	switch t := field.Type(); {
	case t.Kind() == reflect.Pointer:
		if null {
			field.SetZero()
			return nil
		}
		field.Set(reflect.New(t.Elem()))
		return set(field.Elem(), raw, isBytes)
	case t.PkgPath() == "database/sql" && t.Kind() == reflect.Struct && field.FieldByName("Valid").IsValid(): // sql.Null and its kind
		field.SetZero()
		if null {
			return nil
		}
		field.FieldByName("Valid").SetBool(true)
		return set(field.Field(0), raw, isBytes)
	case null:
		if scanner, ok := field.Addr().Interface().(sql.Scanner); ok {
			return scanner.Scan(nil)
		}
		switch t.Kind() {
		case reflect.Slice, reflect.Map, reflect.Interface:
			field.SetZero()
			return nil
		}
		return errNull
	}
	text, isText := string(raw), false
	if raw[0] == '"' {
		isText = true
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	if isText && isBytes {
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		text = string(decoded)
	}
	var err error
	switch v := field.Addr().Interface().(type) {
	case *time.Time:
		*v, err = parseTime(text)
		return err
	case *json.RawMessage:
		*v = raw
		return nil
	case sql.Scanner:
		if err = v.Scan([]byte(text)); err != nil { // it may expect what a driver with parseTime gives
			if at, wrong := parseTime(text); wrong == nil {
				err = v.Scan(at)
			}
		}
		return err
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
		return nil
	case reflect.Bool:
		if text == "true" || text == "false" { // of a JSON column
			field.SetBool(text == "true")
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		field.SetBool(n != 0)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return json.Unmarshal([]byte(text), field.Addr().Interface()) // a DECIMAL is a JSON string
	case reflect.Slice:
		if field.Type().Elem().Kind() == reflect.Uint8 {
			field.SetBytes([]byte(text))
			return nil
		}
	}
	return json.Unmarshal(raw, field.Addr().Interface())
}

// parseTime reads a time or a date of a row. A date like 0000-00-00 is the zero time, as for the driver.
func parseTime(text string) (at time.Time, err error) {
	if strings.HasPrefix(text, "0000-00-00") {
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		at, err = time.Parse(time.DateOnly, text)
	}
	return at, err
}
