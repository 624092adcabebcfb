// Package scheduler decides what should run on this node.
//
// Place is the part that needs no history: it turns a canonical job and the
// facts about the node into allocations, or says why that is impossible. It
// starts nothing and stores nothing.
package scheduler
