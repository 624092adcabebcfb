// Package processtest changes the kernel limits of the test process: its file
// descriptors, and its protection from the out-of-memory killer.
package processtest
