package state

// WaitDurableFunc blocks until a record is on disk. It returns an error if the record cannot
// be stored.
type WaitDurableFunc func() error

// Durability is how soon a record must be on disk.
type Durability int

const (
	DurabilitySync Durability = iota
	// DurabilityGrouped may take a millisecond longer than Sync, so that the write can be shared
	// with a write that is expected as its consequence.
	DurabilityGrouped
	// DurabilityAsync may take longer than DurabilityGrouped, unless another record is written. No caller
	// waits for an DurabilityAsync record.
	DurabilityAsync
)
