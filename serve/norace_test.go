//go:build !race

package serve

const racing = false
