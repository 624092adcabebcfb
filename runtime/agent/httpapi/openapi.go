package httpapi

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// queryParameters are the types and descriptions of all query parameters.
var queryParameters = map[string]struct{ kind, means string }{
	"region":    {"string", "region of the request; a region other than the agent's is an error"},
	"namespace": {"string", "namespace of the objects; lists accept * for all namespaces"},
	"pretty":    {"boolean", "indent the JSON of the response"},

	"index": {"integer", "blocking query: wait until the index of the result is higher than this; for events, the index after which the stream starts"},
	"wait":  {"string", "maximum duration of a blocking query, such as 30s; at most 5m"},
	"stale": {"boolean", "accepted for compatibility: results are never stale"},

	"prefix":       {"string", "list only objects whose ID or name starts with this; hyphens of UUIDs are ignored"},
	"filter":       {"string", "go-bexpr filter expression, evaluated on the full object and not on the list stub"},
	"per_page":     {"integer", "maximum number of objects per page"},
	"without_keys": {"boolean", "leave out the keys of the variables"},
	"next_token":   {"string", "start of the page: the value of the header X-Nomad-Nexttoken of the previous page"},
	"reverse":      {"boolean", "reverse the order of the list"},

	"action":               {"string", "name of the action"},
	"address":              {"string", "RPC address of a server"},
	"allocID":              {"string", "ID of the allocation that runs the action"},
	"command":              {"string", "program and arguments as a JSON array of strings"},
	"debug":                {"integer", "format of the profile: 0 is binary; 1 and 2 are text, with 2 for full goroutine stacks"},
	"follow":               {"boolean", "continue at the end of the file with new output"},
	"format":               {"string", "prometheus selects the Prometheus text format of metrics, and trace-event the Trace Event Format of a timeline; without it the response is the JSON of this document"},
	"gc":                   {"integer", "1 runs a garbage collection before a heap profile"},
	"group":                {"string", "task group of the task"},
	"limit":                {"integer", "maximum number of bytes; zero or less means no limit"},
	"log_include_location": {"boolean", "add the source file and line to each log line"},
	"log_json":             {"boolean", "write each log line as a JSON object"},
	"log_level":            {"string", "lowest level of the streamed log lines: trace, debug, info, warn or error"},
	"node_id":              {"string", "ID of the node; the default is the node of the agent, or all nodes in lists"},
	"offset":               {"integer", "number of bytes from the origin"},
	"origin":               {"string", "where the offset counts from: start or end"},
	"path":                 {"string", "path relative to the allocation directory"},
	"period":               {"string", "how far back the usage goes, such as 1h; at most 6h"},
	"plain":                {"boolean", "respond with plain text and not with JSON frames"},
	"seconds":              {"integer", "duration of a CPU profile or of a trace"},
	"server_id":            {"string", "name of the server; only this agent exists"},
	"task":                 {"string", "name of the task"},
	"tty":                  {"boolean", "allocate a pseudo-terminal"},
	"ws_handshake":         {"boolean", "the first websocket message contains the authentication token"},

	"after":    {"string", "start after the line at this position: the Position of a line"},
	"alloc_id": {"string", "read the output of this allocation only"},
	"compact":  {"boolean", "send only the fields of objects that a list of events shows; an addition to Nomad's API"},
	"latest":   {"integer", "start with the last changes that have at most this number of events together, or with the last change; an addition to Nomad's API"},
	"before":   {"string", "with reverse, start before the line at this position, or before this time: the Position of a line, or milliseconds since 1970"},
	"from":     {"string", "start with the line at this position, or at this time: the Position of a line, or milliseconds since 1970"},
	"lines":    {"integer", "end after this number of lines"},
	"regexp":   {"string", "read only lines that this regular expression matches, in the syntax of RE2"},
	"text":     {"string", "read only lines with this text, in upper or lower case"},

	"all":               {"boolean", "include objects of earlier jobs with the same ID"},
	"cas":               {"integer", "check-and-set: the ModifyIndex that the stored object must have; 0 means that it must not exist"},
	"passing":           {"boolean", "return only instances whose checks all pass; an instance without checks passes. An addition to Nomad's API"},
	"choose":            {"string", "number|key: return at most this number of instances, the same ones for the same key"},
	"diff_tag":          {"string", "compare all versions with the version that has this tag"},
	"diff_version":      {"integer", "compare all versions with this version"},
	"diffs":             {"boolean", "include the differences between versions"},
	"eval_priority":     {"integer", "priority of the evaluation that the request creates"},
	"job_id":            {"string", "list only claims of this job"},
	"node_pool":         {"string", "list only volumes on nodes of this pool"},
	"task_group":        {"string", "list only claims of this task group"},
	"volume_name":       {"string", "list only claims on volumes of this name"},
	"global":            {"boolean", "accepted for compatibility: stop a multi-region job in all regions"},
	"idempotency_token": {"string", "requests with the same token dispatch the job once"},
	"check_config":      {"boolean", "compare the config blocks with the schemas of the drivers"},
	"include_children":  {"boolean", "include dispatched and periodic child jobs"},
	"job":               {"string", "list only objects of the job with this ID"},
	"lock-acquire":      {"string", "acquire the lock of the variable"},
	"lock-release":      {"string", "release the lock of the variable"},
	"lock-renew":        {"string", "renew the lock of the variable"},
	"meta":              {"boolean", "include the metadata of each job"},
	"no_shutdown_delay": {"boolean", "stop without the shutdown_delay of groups and tasks"},
	"os":                {"boolean", "include the operating system of each node"},
	"algo":              {"string", "encryption algorithm of the new key; only aes256-gcm is supported"},
	"force":             {"boolean", "host volume: also delete its claims, and delete it even if its plugin fails; key: remove it even if it is in use, after the data is encrypted with the active key"},
	"full":              {"boolean", "encrypt all variables again with the new key"},
	"key":               {"string", "identifier of the token, in hexadecimal: HMAC-SHA256 with the token as its key, of the text \"nomad-lite agent proof v1: key id\""},
	"nonce":             {"string", "64 hexadecimal digits that the client has chosen at random"},
	"publish_time":      {"integer", "must be 0: a new key becomes active immediately"},
	"purge":             {"boolean", "remove the job from the state"},
	"related":           {"boolean", "include the evaluations that precede and follow this one"},
	"reschedule":        {"boolean", "place a replacement under the reschedule rules, as after a failure"},
	"resources":         {"boolean", "include the resources of each object"},
	"status":            {"string", "list only evaluations with this status"},
	"task_states":       {"boolean", "include the states of tasks; true by default"},
	"topic":             {"string", "event filter: Topic, Topic:* or Topic:key; can be repeated"},
	"type":              {"string", "kind of the object: for logs stdout or stderr, for the health client or server, for volumes host or csi, for scaling policies their type"},
	"version":           {"integer", "version of the job"},
}

// paramsOfAllRoutes are the names of the query parameters that each route has.
const paramsOfAllRoutes = "region namespace pretty"

// jsonObject is a JSON object.
type jsonObject = map[string]any

// newOpenAPIDocument returns the description of an API with these routes.
func newOpenAPIDocument(routes []route) jsonObject {
	s := openAPISchemas{}
	paths := jsonObject{}
	for _, rt := range routes {
		path := strings.ReplaceAll(rt.pattern, "...}", "}")
		item, ok := paths[path].(jsonObject)
		if !ok {
			item = jsonObject{}
			paths[path] = item
		}
		for method := range strings.FieldsSeq(rt.spaceSeparatedMethods) {
			item[strings.ToLower(method)] = s.newOperation(rt)
		}
	}
	return jsonObject{
		"openapi": "3.1.0",
		"info": jsonObject{
			"title":       "nomad-lite",
			"description": "Nomad's HTTP API, served by an agent that runs jobs on one machine. The body of an error is plain text.",
			"version":     "1",
		},
		"paths": paths,
		"components": jsonObject{
			"schemas": s,
			"securitySchemes": jsonObject{
				"token":  jsonObject{"type": "apiKey", "in": "header", "name": "X-Nomad-Token"},
				"bearer": jsonObject{"type": "http", "scheme": "bearer"},
			},
		},
		"security": []jsonObject{{"token": []string{}}, {"bearer": []string{}}, {}},
	}
}

func (a *API) serveOpenAPI(*request) (any, error) { return newOpenAPIDocument(a.routes), nil }

// openAPISchemas are the schemas of the named types found so far.
type openAPISchemas jsonObject

func (s openAPISchemas) newOperation(rt route) jsonObject {
	var params []jsonObject
	for rest := rt.pattern; strings.Contains(rest, "{"); {
		_, after, _ := strings.Cut(rest, "{")
		name, end, _ := strings.Cut(after, "}")
		rest = end
		name, many := strings.CutSuffix(name, "...")
		p := jsonObject{"name": name, "in": "path", "required": true, "schema": jsonObject{"type": "string"}}
		if many {
			p["description"] = "can contain slashes"
		}
		params = append(params, p)
	}
	for _, name := range strings.Fields(paramsOfAllRoutes + " " + strings.Join(rt.params, " ")) {
		known := queryParameters[name]
		params = append(params, jsonObject{"name": name, "in": "query", "description": known.means, "schema": jsonObject{"type": known.kind}})
	}
	answer := jsonObject{"description": "success"}
	switch {
	case rt.contentType != "":
		answer["content"] = jsonObject{rt.contentType: jsonObject{}}
	case rt.responseType != reflect.TypeFor[noContent]():
		answer["content"] = jsonObject{"application/json": jsonObject{"schema": s.schemaOf(rt.responseType)}}
	}
	op := jsonObject{
		"summary": rt.summary, "parameters": params,
		"responses": jsonObject{"200": answer, "default": jsonObject{"description": "error message as plain text", "content": jsonObject{"text/plain": jsonObject{}}}},
	}
	if rt.requestType != nil {
		op["requestBody"] = jsonObject{"content": jsonObject{"application/json": jsonObject{"schema": s.schemaOf(rt.requestType)}}}
	}
	return op
}

// schemaOf returns the schema of a type as [encodeNomadJSON] writes it.
func (s openAPISchemas) schemaOf(t reflect.Type) jsonObject {
	switch {
	case t == timeType:
		return jsonObject{"type": []string{"string", "null"}, "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return jsonObject{"type": "integer", "description": "nanoseconds"}
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		return jsonObject{}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return jsonObject{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonObject{"oneOf": []jsonObject{s.schemaOf(t.Elem()), {"type": "null"}}}
	case reflect.Bool:
		return jsonObject{"type": "boolean"}
	case reflect.String:
		return jsonObject{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return jsonObject{"type": "number"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return jsonObject{"type": []string{"string", "null"}, "contentEncoding": "base64"}
		}
		return jsonObject{"type": []string{"array", "null"}, "items": s.schemaOf(t.Elem())}
	case reflect.Map:
		return jsonObject{"type": []string{"object", "null"}, "additionalProperties": s.schemaOf(t.Elem())}
	case reflect.Struct:
		return s.addStructSchema(t)
	case reflect.Interface:
		return jsonObject{}
	}
	return jsonObject{"type": "integer"}
}

// addStructSchema describes a struct once, under its name, because some structs are recursive.
func (s openAPISchemas) addStructSchema(t reflect.Type) jsonObject {
	name := t.Name()
	if name != "" {
		name = strings.TrimPrefix(t.String(), "api.")
	}
	reference := jsonObject{"$ref": "#/components/schemas/" + name}
	if _, known := s[name]; known && name != "" {
		return reference
	}
	properties := jsonObject{}
	schema := jsonObject{"type": "object", "properties": properties}
	if name != "" {
		s[name] = schema
	}
	for _, f := range jsonFieldsOf(t) {
		if f.reflectIndex == nil {
			properties[f.name] = jsonObject{"description": "always " + f.constantJSON}
			continue
		}
		properties[f.name] = s.schemaOf(t.FieldByIndex(f.reflectIndex).Type)
	}
	if name == "" {
		return schema
	}
	return reference
}
