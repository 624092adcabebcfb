// Package faults tests nodes whose processes, disks and plugins fail at any moment.
package faults
