// Package endurance runs the iterations of a long test and reports them as one part of a long run.
//
// It owns the flags -duration, -seed, -sample and -append of a test binary that imports it. A test calls
// Start, and runs its iterations with Run.Each or Run.EachParallel. Each iteration gets a seed,
// which alone determines its random choices. With -duration, the package prints a row with the commit, the
// code under test, the seed, the duration, the count, the load and the result, when the part starts
// and when it ends. With -append it also writes the row to the table of a file, and updates it each
// minute.
//
// Only tests import it. It imports no package of this module.
package endurance
