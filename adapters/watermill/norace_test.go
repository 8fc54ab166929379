//go:build !race

package watermill_test

const racing = false
