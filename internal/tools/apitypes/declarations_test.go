package main

import (
	"strings"
	"testing"
)

func TestDeclarations(t *testing.T) {
	for _, test := range []struct{ name, document, want string }{
		{"kinds of values", `{"paths": {
			"/v1/job/{id}": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/web.Job"}}}}}}},
			"/v1/job/{id}/name": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"type": "string"}}}}}}},
			"/v1/page": {"get": {"responses": {"200": {"content": {"text/html": {}}}}}},
			"/v1/jobs": {"put": {"responses": {"200": {"content": {"application/json": {"schema": {"type": "integer"}}}}}}}},
			"components": {"schemas": {"unused": {"type": "object"}, "web.Job": {"type": "object", "properties": {
				"Parent": {"oneOf": [{"$ref": "#/components/schemas/web.Job"}, {"type": "null"}]},
				"Tags": {"type": ["array", "null"], "items": {"type": "string"}},
				"Meta": {"type": ["object", "null"], "additionalProperties": {"type": "boolean"}},
				"a-b": {"type": "object", "properties": {"N": {"type": "number"}}},
				"Any": {"$ref": "#/components/schemas/a.Stub"}, "Other": {"$ref": "#/components/schemas/b.Stub"}, "Nothing": {}}},
				"a.Stub": {"type": "object"}, "b.Stub": {"type": "object"}}}}`, header + `
declare namespace API {
// GetResponse is the response to a GET request for a path, which can have a query.
type GetResponse<Path extends string> = string extends Path ? any : Path extends ` + "`${infer P}?${string}`" + ` ? GetResponseOf<P> : GetResponseOf<Path>;

type GetResponseOf<Path extends string> =
  Path extends ` + "`/v1/job/${string}/name`" + ` ? string :
  Path extends ` + "`/v1/job/${string}`" + ` ? Job :
  never;

// PutResponse is the response to a PUT request for a path, which can have a query.
type PutResponse<Path extends string> = string extends Path ? any : Path extends ` + "`${infer P}?${string}`" + ` ? PutResponseOf<P> : PutResponseOf<Path>;

type PutResponseOf<Path extends string> =
  Path extends ` + "`/v1/jobs`" + ` ? number :
  never;

interface a_Stub {
}

interface b_Stub {
}

interface Job {
  Any: a_Stub;
  Meta: Record<string, boolean> | null;
  Nothing: any;
  Other: b_Stub;
  Parent: Job | null;
  Tags: Array<string> | null;
  "a-b": {
    N: number;
  };
}
}
`},
		{"schema is missing", `{"paths": {"/v1/job": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}}}}}}}`, "error: get /v1/job: the schema Job is missing"},
		{"no routes", `{}`, "error: the OpenAPI document has no response of the method get in JSON"},
		{"no document", `<html>`, "error: read the OpenAPI document: invalid character '<' looking for beginning of value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b strings.Builder
			if err := run(strings.NewReader(test.document), &b); err != nil {
				b.WriteString("error: " + err.Error())
			}
			if got := b.String(); got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
}
