package state

// Author is the client that has made a job version: its ACL token at that time.
type Author struct {
	AccessorID string `store:"accessor_id"`
	TokenName  string `store:"token_name"`
}
