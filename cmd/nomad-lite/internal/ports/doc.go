// Package ports formats the ports of allocations and tasks for the column "Ports" of tables.
//
// Groups alloc and job, and package taskview, use it. It only formats the resources that an
// allocation has, and sends no request.
package ports
