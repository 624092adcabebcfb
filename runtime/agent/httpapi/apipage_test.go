package httpapi

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// docs/reference/http-api.md is the OpenAPI description.
func TestReferenceAPIPage(t *testing.T) {
	docpage.Check(t, "reference/http-api.md", formatAPIPage(t, newFixture(t, nil).routes))
}

// statusCodes are the status codes of replies, and their meanings.
var statusCodes = map[int]string{
	http.StatusOK:                          "the request succeeded",
	http.StatusNoContent:                   "the request succeeded, and the reply has no body",
	http.StatusTemporaryRedirect:           "the page is at the address in the header `Location`",
	http.StatusBadRequest:                  "a parameter or the body is invalid; the body has the reason",
	http.StatusUnauthorized:                "the request came from the socket of a task, without a token",
	http.StatusForbidden:                   "the token is missing or lacks the right, or a web page of another site sent the request",
	http.StatusNotFound:                    "the route or the object does not exist",
	http.StatusMethodNotAllowed:            "the route does not have the method",
	http.StatusConflict:                    "the object has changed since the index of `cas`, a lock holds it, or tasks need it",
	http.StatusRequestEntityTooLarge:       "the body is larger than the limit of the route",
	http.StatusUnsupportedMediaType:        "the Prometheus format is disabled in the block `telemetry`",
	http.StatusRequestHeaderFieldsTooLarge: "the header is larger than the limit",
	http.StatusTooManyRequests:             "the client has too many connections (`limits.http_max_conns_per_client`)",
	http.StatusInternalServerError:         "the request failed; the body has the reason, with Nomad's text where clients compare it",
	http.StatusNotImplemented:              "the route needs a cluster, a licence or a part that this agent does not have",
	http.StatusServiceUnavailable:          "the agent shuts down, or too many bodies are in memory: send the request again",
}

// Each status code that the package writes is in the table, and the table has no others.
func TestStatusCodesAreDocumented(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{"StatusOK": true, "StatusRequestHeaderFieldsTooLarge": true} // net/http writes these
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Status") && s.Sel.Name != "StatusText" {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "http" {
					written[s.Sel.Name] = true
				}
			}
			return true
		})
	}
	documented := map[string]bool{}
	for code := range statusCodes {
		documented["Status"+strings.ReplaceAll(strings.ReplaceAll(http.StatusText(code), " ", ""), "-", "")] = true
	}
	if want, got := slices.Sorted(maps.Keys(written)), slices.Sorted(maps.Keys(documented)); !slices.Equal(want, got) {
		t.Errorf("the package writes the status codes\n%q, and statusCodes has\n%q", want, got)
	}
}

func formatAPIPage(t *testing.T, routes []route) string {
	t.Helper()
	text, err := json.Marshal(newOpenAPIDocument(routes))
	if err != nil {
		t.Fatal(err)
	}
	var d openAPIDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Routes of the HTTP API\n\n" +
		"This page is generated from the OpenAPI description of the agent (`make reference`), which is at `/v1/openapi.json`.\n" +
		"[The HTTP API](api.md) describes addresses, tokens, lists, blocking queries and streams, with commands. The body of an error is plain text.\n\n")
	b.WriteString("## Status codes\n\n")
	codes := docpage.NewTable("Code", "Meaning")
	for _, code := range slices.Sorted(maps.Keys(statusCodes)) {
		codes.AddRow(strconv.Itoa(code), statusCodes[code])
	}
	b.WriteString(codes.String())
	b.WriteString("\n## Parameters\n\nEach route has the parameters " + formatList(strings.Fields(paramsOfAllRoutes)) + ".\n\n")
	parameters := docpage.NewTable("Parameter", "Type", "Meaning")
	for _, name := range slices.Sorted(maps.Keys(queryParameters)) {
		parameters.AddRow(docpage.Code(name), queryParameters[name].kind, queryParameters[name].means)
	}
	b.WriteString(parameters.String())
	b.WriteString("\n## Routes\n\nThe column *Reads* names the clients besides the operator that can send the request: *all* clients, or those with the read-only token. " +
		"`Job` and other types without a link are those of Nomad's Go client (`github.com/hashicorp/nomad/api`).\n")
	type section struct {
		prefixes []string
		table    *docpage.Table
	}
	var sections []*section
	byName := map[string]*section{}
	for _, rt := range routes {
		prefix := pathPrefix(rt.pattern)
		name := strings.TrimSuffix(prefix, "s") // the routes of lists and of one object are together
		if byName[name] == nil {
			byName[name] = &section{table: docpage.NewTable("Route", "Purpose", "Parameters", "Body", "Reply", "Reads")}
			sections = append(sections, byName[name])
		}
		if s := byName[name]; !slices.Contains(s.prefixes, prefix) {
			s.prefixes = append(s.prefixes, prefix)
		}
		methods := strings.Fields(rt.spaceSeparatedMethods)
		path := strings.ReplaceAll(rt.pattern, "...}", "}")
		op := d.Paths[path][strings.ToLower(methods[0])]
		var body, reply string
		for kind, content := range op.RequestBody.Content {
			body = d.linkedType(kind, content.Schema)
		}
		for kind, content := range op.Responses["200"].Content {
			reply = d.linkedType(kind, content.Schema)
		}
		byName[name].table.AddRow(docpage.Code(strings.Join(methods, ", ")+" "+path), rt.summary, docpage.Code(strings.Fields(strings.Join(rt.params, " "))...), body, reply, readersOf(rt))
	}
	for _, s := range sections {
		fmt.Fprintf(&b, "\n### %s\n\n%s", strings.Join(s.prefixes, ", "), s.table)
	}
	b.WriteString("\n## Objects\n\nThese objects are not types of Nomad's Go client.\n")
	for _, name := range slices.SortedFunc(maps.Keys(d.Components.Schemas), compareFold) {
		if isNomadType(name) {
			continue
		}
		fields := docpage.NewTable("Field", "Type")
		for _, field := range slices.Sorted(maps.Keys(d.Components.Schemas[name].Properties)) {
			fields.AddRow(docpage.Code(field), d.linkedType("", d.Components.Schemas[name].Properties[field]))
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", shortTypeName(name), fields)
	}
	return b.String()
}

func formatList(names []string) string { return strings.ReplaceAll(docpage.Code(names...), " ", ", ") }

func compareFold(a, b string) int {
	return strings.Compare(strings.ToLower(shortTypeName(a)), strings.ToLower(shortTypeName(b)))
}

// pathPrefix returns the start of a path that the routes of one section have in common.
func pathPrefix(pattern string) string {
	parts := strings.SplitN(pattern, "/", 4)
	if len(parts) < 3 || parts[1] != "v1" {
		return "Other paths"
	}
	return "/v1/" + parts[2]
}

// readersOf returns the clients without the rights of the operator that can send a request to the route.
func readersOf(rt route) string {
	if publicPaths[rt.pattern] || isWebUIPath(rt.pattern) {
		return "all"
	}
	if _, ok := readOnlyRoutes[rt.pattern]; ok && strings.Contains(rt.spaceSeparatedMethods, http.MethodGet) {
		return "read-only token"
	}
	return ""
}

// shortTypeName returns the name of a schema without its package.
func shortTypeName(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// linkedType returns the type of a schema in Markdown. A type that is not JSON is its content type.
func (d *openAPIDocument) linkedType(contentType string, s openAPISchema) string {
	name := strings.TrimPrefix(s.Ref, schemaPath)
	switch {
	case contentType != "" && contentType != "application/json":
		return docpage.Code(contentType)
	case s.Ref != "" && isNomadType(name):
		return docpage.Code(name)
	case s.Ref != "":
		return fmt.Sprintf("[%s](#%s)", shortTypeName(name), strings.ToLower(shortTypeName(name)))
	case len(s.OneOf) > 0:
		return d.linkedType("", s.OneOf[0]) + " or null"
	case s.Items != nil:
		return "array of " + d.linkedType("", *s.Items)
	case s.AdditionalProperties != nil:
		return "map of " + d.linkedType("", *s.AdditionalProperties)
	case len(s.Properties) > 0:
		var fields []string
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			fields = append(fields, docpage.Code(field)+": "+d.linkedType("", s.Properties[field]))
		}
		return "object with " + strings.Join(fields, ", ")
	}
	return jsonTypeText(d.typeText(s))
}

// jsonTypeText returns a type such as "[string null]" as words.
func jsonTypeText(text string) string {
	return strings.ReplaceAll(strings.Trim(text, "[]"), " null", " or null")
}
