// Benchcompare runs benchmarks of the work tree and of another commit in alternation, and says for
// each figure whether the difference is larger than the difference of the other commit with itself
// in the same run.
//
//	benchcompare -base HEAD~1 [-bench regexp] [-pairs 10] [-benchtime 100ms]
//
// Each round runs each benchmark three times: twice of the base and once of the candidate, which is
// the work tree with what is not committed. DESIGN.md gives the reasons for the rounds and for the
// rule of the verdict.
//
// The exit status is 1 if a figure is worse, 2 if the comparison failed. The first interrupt ends
// the comparison after the benchmark that runs, so that the benchmark stops its own processes; the
// second one kills the benchmark.
package main
