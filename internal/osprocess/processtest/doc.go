// Package processtest changes the kernel limits of the test process: its file
// descriptors, and its protection from the out-of-memory killer. It also runs tests as an ordinary user.
package processtest
