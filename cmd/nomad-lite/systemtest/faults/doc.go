// Package faults tests agents whose processes, disks and plugins fail at any point in time.
package faults
