package httpapi

import "reflect"

// about says what a route is for and what goes in and comes out. The description
// of the API is made of it, so each route has one.
type about struct {
	summary string
	params  []string // of the query, besides those that all routes have; groups are separated by spaces
	takes   reflect.Type
	gives   reflect.Type
	kind    string // the content type of the answer, if it is not JSON
}

// reads is about a route that answers from the state, at once or when it has
// changed.
func reads[Out any](summary string, params ...string) about {
	return about{summary: summary, params: append(params, "index wait stale"), gives: reflect.TypeFor[Out]()}
}

// noBody is about a route that is asked without a body.
func noBody[Out any](summary string, params ...string) about {
	return about{summary: summary, params: params, gives: reflect.TypeFor[Out]()}
}

// withBody is about a route that is asked with a body.
func withBody[In, Out any](summary string, params ...string) about {
	return about{summary: summary, params: params, takes: reflect.TypeFor[In](), gives: reflect.TypeFor[Out]()}
}

// streams is about a route whose answer is of another type than JSON, or has no
// end.
func streams(kind, summary string, params ...string) about {
	return about{summary: summary, params: params, kind: kind}
}

// paged are the parameters of lists; see [page].
const paged = "prefix filter per_page next_token reverse"
