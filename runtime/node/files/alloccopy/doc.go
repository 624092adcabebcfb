// Package alloccopy keeps a copy of each allocation and its job in the allocation's directory, where no task can read or
// write it. If the state loses an allocation, package orphans restores it from the copy.
package alloccopy
