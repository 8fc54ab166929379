package mysqltest

import (
	"flag"
	"strconv"
)

// Parallel sets how many tests of the package run at the same time, unless -parallel is given. It is for packages whose tests
// wait more than those of other packages. A TestMain calls it before [Main].
func Parallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
