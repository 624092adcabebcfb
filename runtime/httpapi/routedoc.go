package httpapi

import "reflect"

// routeDoc describes the purpose of a route, its parameters and its types. The OpenAPI description is
// generated from it, so each route has one.
type routeDoc struct {
	summary string
	params  []string // query parameters besides the common ones; groups are separated by spaces
	takes   reflect.Type
	gives   reflect.Type
	kind    string // content type of the response, if it is not JSON
}

// reads describes a route that returns a part of the state, at once or when it has changed.
func reads[Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: append(params, "index wait stale"), gives: reflect.TypeFor[Out]()}
}

// noBody describes a route whose request has no body.
func noBody[Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, gives: reflect.TypeFor[Out]()}
}

// withBody describes a route whose request has a body.
func withBody[In, Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, takes: reflect.TypeFor[In](), gives: reflect.TypeFor[Out]()}
}

// streams describes a route whose response is not JSON, or has no end.
func streams(kind, summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, kind: kind}
}

// pageParams are the parameters of lists; see [page].
const pageParams = "prefix filter per_page next_token reverse"
