package httpapi

import "reflect"

// routeDoc describes the purpose of a route, its parameters and its types. The OpenAPI description is
// generated from it, so each route has one.
type routeDoc struct {
	summary      string
	params       []string // names of query parameters, without the parameters of all routes; one text may have several names, separated by spaces
	requestType  reflect.Type
	responseType reflect.Type
	contentType  string // content type of the response, if it is not JSON
}

// routeDocOfStateRead describes a route that returns a part of the state. Its request may be a blocking query.
func routeDocOfStateRead[Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: append(params, "index wait stale"), responseType: reflect.TypeFor[Out]()}
}

// routeDocWithoutBody describes a route whose request has no body.
func routeDocWithoutBody[Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, responseType: reflect.TypeFor[Out]()}
}

// routeDocWithBody describes a route whose request has a body.
func routeDocWithBody[In, Out any](summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, requestType: reflect.TypeFor[In](), responseType: reflect.TypeFor[Out]()}
}

// routeDocOfStream describes a route whose response is not JSON, or has no end.
func routeDocOfStream(contentType, summary string, params ...string) routeDoc {
	return routeDoc{summary: summary, params: params, contentType: contentType}
}

// pageParams are the parameters of lists; see [listPage].
const pageParams = "prefix filter per_page next_token reverse"
