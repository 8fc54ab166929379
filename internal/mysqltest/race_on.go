//go:build race

package mysqltest

const raced = true
