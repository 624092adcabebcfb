// Package hostport reports which ports of the machine are free, and which processes listen on the others.
package hostport
