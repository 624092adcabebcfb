// Package fingerprint finds out what machine this is: the attributes that job
// files refer to, and what placement may count on.
//
// It looks once, quickly, and never fails: what cannot be found out is left
// out, and said. It asks nothing over the network. What drivers say about
// themselves comes from elsewhere.
package fingerprint
