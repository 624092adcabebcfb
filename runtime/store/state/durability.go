package state

// WaitDurableFunc blocks until a record is on disk. It returns an error if the record could not
// be stored.
type WaitDurableFunc func() error

// Durability is how soon a record must be on disk.
type Durability int

const (
	DurabilitySync Durability = iota
	// DurabilityGrouped may delay the write by a millisecond, so that the record can share it with another record that usually
	// follows.
	DurabilityGrouped
	// DurabilityAsync may delay the write by more than DurabilityGrouped, unless another record is written before. It is for
	// records for which no caller waits.
	DurabilityAsync
)
