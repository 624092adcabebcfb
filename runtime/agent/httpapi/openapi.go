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
	"region":    {"string", "the region; an error if it is not the region of the agent"},
	"namespace": {"string", "the namespace; * is all of them in lists"},
	"pretty":    {"boolean", "indent the answer"},

	"index": {"integer", "wait until the answer has a higher index than this one"},
	"wait":  {"string", "how long to wait, such as 30s; at most 5m"},
	"stale": {"boolean", "accepted for the sake of clients; no answer is stale"},

	"prefix":     {"string", "what names or ids begin with; hyphens of ids do not count"},
	"filter":     {"string", "an expression of go-bexpr about the whole object"},
	"per_page":   {"integer", "how many objects there are on a page"},
	"next_token": {"string", "where the page begins: X-Nomad-Nexttoken of the page before"},
	"reverse":    {"boolean", "the other order"},

	"action":               {"string", "the name of the action"},
	"address":              {"string", "an address"},
	"allocID":              {"string", "the allocation"},
	"command":              {"string", "a list of JSON: the program and its arguments"},
	"debug":                {"integer", "2 is for people"},
	"follow":               {"boolean", "go on at the end with what comes"},
	"format":               {"string", "prometheus is text for Prometheus"},
	"gc":                   {"integer", "1 collects garbage before"},
	"group":                {"string", "the group of the task"},
	"limit":                {"integer", "how many bytes; all if it is not above 0"},
	"log_include_location": {"boolean", "with the place in the program"},
	"log_json":             {"boolean", "each line is an object of JSON"},
	"log_level":            {"string", "from where on: trace, debug, info, warn or error"},
	"node_id":              {"string", "the node; this one if it is left out"},
	"offset":               {"integer", "bytes from the origin"},
	"origin":               {"string", "start or end"},
	"path":                 {"string", "a path below the directory of the allocation"},
	"plain":                {"boolean", "text in place of frames"},
	"seconds":              {"integer", "how long to look"},
	"server_id":            {"string", "the server; there is this one only"},
	"task":                 {"string", "the name of the task"},
	"tty":                  {"boolean", "with a terminal"},
	"ws_handshake":         {"boolean", "the token is the first message"},

	"all":               {"boolean", "also what belongs to earlier jobs of the same name"},
	"cas":               {"integer", "the ModifyIndex that it must have; 0 means that it must not be there"},
	"choose":            {"string", "a number, | and a key: so many of them, the same for the same key"},
	"diff_tag":          {"string", "compare all versions with the version that has this tag"},
	"diff_version":      {"integer", "compare all versions with this one"},
	"diffs":             {"boolean", "with what differs between the versions"},
	"eval_priority":     {"integer", "the priority of the evaluation"},
	"job_id":            {"string", "only those of this job"},
	"node_pool":         {"string", "only those of nodes in this pool"},
	"task_group":        {"string", "only those of this group"},
	"volume_name":       {"string", "only those of the volume of this name"},
	"global":            {"boolean", "accepted for the sake of clients"},
	"idempotency_token": {"string", "the same token dispatches once"},
	"include_children":  {"boolean", "also jobs that were launched or dispatched by others"},
	"job":               {"string", "only the deployments of this job"},
	"lock-acquire":      {"string", "lock it"},
	"lock-release":      {"string", "end its lock"},
	"lock-renew":        {"string", "keep its lock"},
	"meta":              {"boolean", "with the metadata of each job"},
	"no_shutdown_delay": {"boolean", "leave out the shutdown delay of groups and tasks"},
	"os":                {"boolean", "with the name of the operating system"},
	"algo":              {"string", "the algorithm of the key: aes256-gcm"},
	"force":             {"boolean", "remove the key even if something is sealed with it, which is sealed again before"},
	"full":              {"boolean", "seal everything again with the new key"},
	"publish_time":      {"integer", "refused unless it is 0: a key is used at once"},
	"purge":             {"boolean", "remove it from the state, too"},
	"related":           {"boolean", "with what came before and after it"},
	"reschedule":        {"boolean", "place it again as if it had failed"},
	"resources":         {"boolean", "with the resources"},
	"status":            {"string", "only those that are in this state"},
	"task_states":       {"boolean", "false leaves the states of tasks out"},
	"topic":             {"string", "Topic, Topic:* or Topic:key; may be repeated"},
	"type":              {"string", "only what is of this type"},
	"version":           {"integer", "the version of the job"},
}

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
		for method := range strings.FieldsSeq(rt.methods) {
			item[strings.ToLower(method)] = s.newOperation(rt)
		}
	}
	return jsonObject{
		"openapi": "3.1.0",
		"info": jsonObject{
			"title":       "nomad-lite",
			"description": "Nomad's HTTP API, as an agent that runs jobs on one machine serves it. Errors are plain text.",
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
			p["description"] = "may have slashes"
		}
		params = append(params, p)
	}
	for _, name := range strings.Fields("region namespace pretty " + strings.Join(rt.params, " ")) {
		known := queryParameters[name]
		params = append(params, jsonObject{"name": name, "in": "query", "description": known.means, "schema": jsonObject{"type": known.kind}})
	}
	answer := jsonObject{"description": "the answer"}
	switch {
	case rt.contentType != "":
		answer["content"] = jsonObject{rt.contentType: jsonObject{}}
	case rt.responseType != reflect.TypeFor[noContent]():
		answer["content"] = jsonObject{"application/json": jsonObject{"schema": s.schemaOf(rt.responseType)}}
	}
	op := jsonObject{
		"summary": rt.summary, "parameters": params,
		"responses": jsonObject{"200": answer, "default": jsonObject{"description": "an error", "content": jsonObject{"text/plain": jsonObject{}}}},
	}
	if rt.requestType != nil {
		op["requestBody"] = jsonObject{"content": jsonObject{"application/json": jsonObject{"schema": s.schemaOf(rt.requestType)}}}
	}
	return op
}

// schemaOf returns the schema of a type as [encode] writes it.
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
		return s.structSchema(t)
	case reflect.Interface:
		return jsonObject{}
	}
	return jsonObject{"type": "integer"}
}

// structSchema describes a struct once, under its name, because some structs are recursive.
func (s openAPISchemas) structSchema(t reflect.Type) jsonObject {
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
	for _, f := range structFields(t) {
		if f.index == nil {
			properties[f.name] = jsonObject{"description": "always " + f.constantJSON}
			continue
		}
		properties[f.name] = s.schemaOf(t.FieldByIndex(f.index).Type)
	}
	if name == "" {
		return schema
	}
	return reference
}
