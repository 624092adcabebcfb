package httpapi

// meta is what is at the end of many answers.
type meta struct {
	Index       uint64
	LastContact int64
	KnownLeader bool
	NextToken   string
}

// meta is that of the answer to a change, which has made the index.
func (r *request) meta(index uint64) meta {
	r.index = index
	return meta{Index: index}
}

// val is the value of an optional attribute, zero when it is not set.
func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// list is never null.
func list[T any](found []T) []T {
	if found == nil {
		return []T{}
	}
	return found
}
