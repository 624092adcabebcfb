// Package helperprocess makes the program the keeper or the log collector, if its command line says so. It has no functions: its init function takes
// the process over before most packages of the program are initialized, because their variables would be most of the memory of a
// helper process. So it imports few packages, and none that waits for the initialization of many others.
package helperprocess
