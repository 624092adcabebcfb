package pointer

// Value returns the value that p points to, or the zero value if p is nil.
func Value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
