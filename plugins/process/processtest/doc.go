// Package processtest changes what the process of a test has of the kernel: it takes file
// descriptors from it, and protects it from the lack of memory.
package processtest
