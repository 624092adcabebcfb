package evaluate

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/hashicorp/consul-template/dependency"
	"github.com/hashicorp/nomad/api"

	scratch "github.com/nomad-lite/nomad-lite/builtin/template/evaluate/internal/scratch"
)

// evaluation is one execution of a template. Its functions replace those functions of consul-template that read data: they
// look the data up in the request, and record the queries.
type evaluation struct {
	request *Request
	data    map[Query]*Datum
	isUsed  map[Query]bool
	used    []Query // in the order of their first use
	unknown []Query
	usedEnv []string
	missing []string

	usedLength, missingLength int // of the names in used and in missing, in bytes
}

func newEvaluation(r *Request) *evaluation {
	e := &evaluation{request: r, data: make(map[Query]*Datum, len(r.Data)), isUsed: make(map[Query]bool)}
	for i := range r.Data {
		e.data[r.Data[i].Query] = &r.Data[i]
	}
	return e
}

func (e *evaluation) functions() template.FuncMap {
	values := &scratch.Scratch{}
	return template.FuncMap{
		"env": func(name string) (string, error) {
			value, _, err := e.lookupEnv(name)
			return value, err
		},
		"mustEnv":      e.mustEnv,
		"envOrDefault": e.envOrDefault,

		"file":             e.file,
		"nomadVar":         e.nomadVar,
		"nomadVarExists":   e.nomadVarExists,
		"nomadVarList":     func(prefix ...string) ([]*dependency.NomadVarMeta, error) { return e.nomadVarList(prefix, false) },
		"nomadVarListSafe": func(prefix ...string) ([]*dependency.NomadVarMeta, error) { return e.nomadVarList(prefix, true) },
		"nomadService":     e.nomadService,
		"nomadServices":    e.nomadServices,

		"service":          e.service,
		"services":         e.services,
		"importedServices": e.importedServices,
		"sockaddr":         evaluateSockaddr,
		"scratch":          func() *scratch.Scratch { return values },
	}
}

// lookup returns the value of a query, and records the query as used. It returns nil if there are no such data, or if the request has no
// answer; then it also records the query as unknown.
func (e *evaluation) lookup(q Query) (*Value, error) {
	d := e.data[q]
	if !e.isUsed[q] {
		size := len(q.Name) + len(q.Namespace) + len(q.Region) + len(q.Choose)
		if e.usedLength += size; size > maxNameSize || e.usedLength > maxNamesLength || len(e.used) >= maxNames {
			return nil, errTooManyNames
		}
		e.isUsed[q] = true
		e.used = append(e.used, q)
		if d == nil {
			e.unknown = append(e.unknown, q)
		}
	}
	switch {
	case d == nil:
		return nil, nil
	case d.Err != "":
		return nil, errors.New(d.Err)
	case !d.Value.Exists:
		return nil, nil
	}
	return &d.Value, nil
}

var errTooManyNames = fmt.Errorf("a template reads at most %d variables, services and files, with names of %d KiB", maxNames, maxNameSize>>10)

// addMissing records data that do not exist and without which the output cannot be used. It records the beginning of a long name, and
// some of very many names.
func (e *evaluation) addMissing(d fmt.Stringer) {
	name := d.String()
	name = name[:min(len(name), maxNameSize)]
	if len(e.missing) < maxNames && e.missingLength+len(name) <= maxNamesLength && !slices.Contains(e.missing, name) {
		e.missing = append(e.missing, name)
		e.missingLength += len(name)
	}
}

// matchGroups returns the named groups of an expression of package dependency, which has checked the text with it.
func matchGroups(re *regexp.Regexp, text string) map[string]string {
	groups := map[string]string{}
	for i, value := range re.FindStringSubmatch(text) {
		groups[re.SubexpNames()[i]] = value
	}
	return groups
}

func (e *evaluation) variableQuery(path string) (*dependency.NVGetQuery, Query, error) {
	d, err := dependency.NewNVGetQuery(e.request.Namespace, path)
	if err != nil {
		return nil, Query{}, err
	}
	groups := matchGroups(dependency.NVGetQueryRe, strings.Trim(strings.TrimSpace(path), "/"))
	return d, Query{Kind: Variable, Name: groups["path"], Namespace: cmp.Or(groups["namespace"], e.request.Namespace), Region: groups["region"]}, nil
}

func (e *evaluation) nomadVar(path string) (dependency.NomadVarItems, error) {
	if path == "" {
		return nil, nil
	}
	d, q, err := e.variableQuery(path)
	if err != nil {
		return nil, err
	}
	d.EnableBlocking() // gives the query its name in the list of missing data
	value, err := e.lookup(q)
	if err != nil {
		return nil, err
	}
	if value == nil {
		e.addMissing(d)
		return nil, nil
	}
	return dependency.NewNomadVariable(value.Variable).Items, nil
}

func (e *evaluation) nomadVarExists(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	d, q, err := e.variableQuery(path)
	if err != nil {
		return false, err
	}
	value, err := e.lookup(q)
	if answer := e.data[q]; answer != nil && answer.Unavailable {
		e.addMissing(d)
	}
	return value != nil, err
}

// nomadVarList lists variables. If emptyIsMissing is true, an empty list counts as missing data.
func (e *evaluation) nomadVarList(args []string, emptyIsMissing bool) ([]*dependency.NomadVarMeta, error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("nomadVarList takes either a single \"prefix\" parameter or none for all available variables; got: %v", args)
	}
	prefix := strings.Join(args, "")
	list := []*dependency.NomadVarMeta{}
	d, err := dependency.NewNVListQuery(e.request.Namespace, prefix)
	if err != nil {
		return list, err
	}
	groups := matchGroups(dependency.NVListQueryRe, prefix)
	if strings.Trim(groups["prefix"], "/") == "" {
		groups["prefix"] = ""
	}
	value, err := e.lookup(Query{Kind: VariableList, Name: groups["prefix"], Namespace: cmp.Or(groups["namespace"], e.request.Namespace), Region: groups["region"]})
	if err != nil {
		return list, err
	}
	if value != nil {
		for _, m := range value.Variables {
			list = append(list, dependency.NewNomadVarMeta(m))
		}
	}
	if value == nil || emptyIsMissing && len(list) == 0 {
		e.addMissing(d)
	}
	return list, nil
}

// nomadService returns the instances of a service. With a number and a key as the first arguments it returns that many instances, which a
// new or a removed instance can change.
func (e *evaluation) nomadService(args ...any) ([]*dependency.NomadService, error) {
	var d *dependency.NomadServiceQuery
	var name, choose string
	var err error
	switch len(args) {
	case 1:
		var ok bool
		if name, ok = args[0].(string); !ok {
			return nil, errors.New("expected string for <service> argument")
		}
		d, err = dependency.NewNomadServiceQuery(name)
	case 3:
		count, ok := args[0].(int)
		if !ok {
			return nil, errors.New("expected integer for <count> argument")
		}
		key, ok := args[1].(string)
		if !ok {
			return nil, errors.New("expected string for <key> argument")
		}
		if name, ok = args[2].(string); !ok {
			return nil, errors.New("expected string for <service> argument")
		}
		choose = fmt.Sprintf("%d|%s", count, key)
		d, err = dependency.NewNomadServiceChooseQuery(count, key, name)
	default:
		return nil, errors.New("expected arguments <service> or <count> <key> <service>")
	}
	if err != nil {
		return nil, err
	}
	groups := matchGroups(dependency.NomadServiceQueryRe, name)
	value, err := e.lookup(Query{Kind: Service, Name: groups["name"], Region: groups["region"], Choose: choose})
	if err != nil {
		return nil, err
	}
	if value == nil {
		e.addMissing(d)
		return nil, nil
	}
	list := []*dependency.NomadService{}
	for _, s := range value.Services {
		if tag := groups["tag"]; tag == "" || slices.Contains(s.Tags, tag) {
			list = append(list, newService(s))
		}
	}
	return list, nil
}

func newService(s *api.ServiceRegistration) *dependency.NomadService {
	return &dependency.NomadService{
		ID: s.ID, Name: s.ServiceName, Node: s.NodeID, Address: s.Address, Port: s.Port, Datacenter: s.Datacenter,
		Tags: newTags(s.Tags), JobID: s.JobID, AllocID: s.AllocID,
	}
}

func newTags(tags []string) dependency.ServiceTags {
	return append(make(dependency.ServiceTags, 0, len(tags)), slices.Sorted(slices.Values(tags))...)
}

func (e *evaluation) nomadServices(region ...string) ([]*dependency.NomadServicesSnippet, error) {
	text := strings.Join(region, "")
	d, err := dependency.NewNomadServicesQuery(text)
	if err != nil {
		return nil, err
	}
	value, err := e.lookup(Query{Kind: ServiceList, Region: matchGroups(dependency.NomadServicesQueryRe, text)["region"]})
	if err != nil {
		return nil, err
	}
	if value == nil {
		e.addMissing(d)
		return nil, nil
	}
	list := []*dependency.NomadServicesSnippet{}
	for _, s := range value.ServiceNames {
		list = append(list, &dependency.NomadServicesSnippet{Name: s.ServiceName, Tags: newTags(s.Tags)})
	}
	slices.SortStableFunc(list, func(a, b *dependency.NomadServicesSnippet) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (e *evaluation) file(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if _, err := dependency.NewFileQuery(path); err != nil {
		return "", err
	}
	value, err := e.lookup(Query{Kind: File, Name: strings.TrimSpace(path)})
	if value == nil {
		return "", err
	}
	return value.Text, nil
}

// service lists instances of a catalog that takes the place of Consul's. It accepts consul-template's arguments, such as
// "tag.name@dc|any".
func (e *evaluation) service(args ...string) ([]*dependency.HealthService, error) {
	list := []*dependency.HealthService{}
	if len(args) == 0 || args[0] == "" {
		return list, nil
	}
	text := strings.Join(args, "|")
	d, err := dependency.NewHealthServiceQuery(text)
	if err != nil {
		return nil, err
	}
	groups := matchGroups(dependency.HealthServiceQueryRe, text)
	value, err := e.lookup(Query{Kind: ConsulService, Name: groups["name"]})
	if err != nil {
		return nil, err
	}
	if value == nil {
		e.addMissing(d)
		return list, nil
	}
	statuses := strings.Split(cmp.Or(groups["filter"], dependency.HealthPassing), ",")
	for _, i := range value.ConsulServices {
		isInDatacenter := groups["dc"] == "" || i.Datacenter == groups["dc"]
		hasTag := groups["tag"] == "" || slices.Contains(i.Tags, groups["tag"])
		if isInDatacenter && hasTag && (slices.Contains(statuses, dependency.HealthAny) || slices.Contains(statuses, i.Status)) {
			list = append(list, &dependency.HealthService{
				Node: i.NodeID, NodeID: i.NodeID, NodeAddress: i.Address, Address: i.Address, ID: i.ID, Name: i.ServiceName,
				Tags: newTags(i.Tags), Status: i.Status, Port: i.Port,
			})
		}
	}
	return list, nil
}

// services lists the services of a catalog that takes the place of Consul's.
func (e *evaluation) services(datacenter ...string) ([]*dependency.CatalogSnippet, error) {
	list := []*dependency.CatalogSnippet{}
	d, err := dependency.NewCatalogServicesQuery(strings.Join(datacenter, ""))
	if err != nil {
		return nil, err
	}
	value, err := e.lookup(Query{Kind: ConsulServiceList})
	if err != nil {
		return nil, err
	}
	if value == nil {
		e.addMissing(d)
		return list, nil
	}
	for _, s := range value.ServiceNames {
		list = append(list, &dependency.CatalogSnippet{Name: s.ServiceName, Tags: newTags(s.Tags)})
	}
	return list, nil
}

// stringer is a name in the list of missing data.
type stringer string

func (s stringer) String() string { return string(s) }

// importedServices replaces a function that consul-template 0.41.1 does not have. Like the other functions of Consul, it waits forever.
func (e *evaluation) importedServices(partition string) ([]any, error) {
	e.addMissing(stringer("list.importedServices(" + partition + ")"))
	return []any{}, nil
}

// nodePrefixes are the prefixes of the node's attributes among the names that env accepts.
var nodePrefixes = []string{"attr.", "meta.", "node."}

func (e *evaluation) lookupEnv(name string) (value string, ok bool, err error) {
	if value, ok = e.request.Env[name]; ok {
		if !slices.Contains(e.usedEnv, name) {
			e.usedEnv = append(e.usedEnv, name)
		}
		return value, true, nil
	}
	if !slices.ContainsFunc(nodePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return "", false, nil
	}
	found, err := e.lookup(Query{Kind: NodeAttribute, Name: name})
	if found == nil {
		return "", false, err
	}
	return found.Text, true, nil
}

func (e *evaluation) mustEnv(name string) (string, error) {
	value, _, err := e.lookupEnv(name)
	if err == nil && value == "" {
		err = fmt.Errorf("required environment variable %s is empty", name)
	}
	return value, err
}

func (e *evaluation) envOrDefault(name, otherwise string) (string, error) {
	value, ok, err := e.lookupEnv(name)
	if !ok {
		value = otherwise
	}
	return value, err
}
