package compose

import (
	"path/filepath"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// toLongForms replaces the short forms of a service, so that files can be merged, and makes paths absolute, relative to dir.
func toLongForms(service *value, dir string) error {
	for _, key := range service.keys {
		field := service.fields[key]
		if field.kind == null {
			continue
		}
		converted, err := toLongForm(key, field, dir)
		if err != nil {
			return err
		}
		service.fields[key] = converted
	}
	return nil
}

func toLongForm(key string, v *value, dir string) (*value, error) {
	switch key {
	case "environment", "labels", "annotations", "sysctls":
		return v.toMapping("=")
	case "extra_hosts":
		return extraHostsToMapping(v)
	case "build":
		return buildToLongForm(v, dir)
	case "depends_on":
		return dependsOnToLongForm(v)
	case "networks":
		return v.toMapping("\x00")
	case "env_file":
		return eachItem(v, func(item *value) (*value, error) {
			if item.kind == scalar {
				m := newMapping(item.at)
				m.set("path", newScalar(item.at, item.text))
				item = m
			}
			path := item.get("path")
			if path == nil {
				return nil, importer.Errorf(item.at, "env_file has no path")
			}
			path.text = absolute(dir, path.text)
			return item, nil
		})
	case "volumes":
		return eachItem(v, func(item *value) (*value, error) { return volumeToLongForm(item, dir) })
	case "secrets", "configs":
		return eachItem(v, func(item *value) (*value, error) {
			if item.kind == scalar {
				m := newMapping(item.at)
				m.set("source", newScalar(item.at, item.text))
				return m, nil
			}
			return item, nil
		})
	case "tmpfs", "dns", "dns_search", "dns_opt", "expose", "cap_add", "cap_drop", "security_opt", "group_add", "profiles", "devices", "links", "external_links", "volumes_from", "ports":
		return eachItem(v, func(item *value) (*value, error) { return item, nil })
	}
	return v, nil
}

// eachItem returns a list with the converted items of a list, or of a single value.
func eachItem(v *value, convert func(*value) (*value, error)) (*value, error) {
	items := []*value{v}
	if v.kind == list {
		items = v.items
	}
	converted := &value{at: v.at, kind: list, tag: v.tag}
	for _, item := range items {
		if item.kind != scalar && item.kind != mapping {
			return nil, importer.Errorf(item.at, "an item must be a text or a mapping, not a %s", item.kind)
		}
		c, err := convert(item)
		if err != nil {
			return nil, err
		}
		converted.items = append(converted.items, c)
	}
	return converted, nil
}

// extraHostsToMapping accepts "host=address", "host:address" and a mapping of hosts to one or more addresses.
func extraHostsToMapping(v *value) (*value, error) {
	if v.kind != list {
		return v, nil
	}
	m := newMapping(v.at)
	m.tag = v.tag
	for _, item := range v.items {
		text, err := item.asText()
		if err != nil {
			return nil, err
		}
		host, address, found := strings.Cut(text, "=")
		if !found {
			host, address, found = strings.Cut(text, ":")
		}
		if !found {
			return nil, importer.Errorf(item.at, "extra_hosts has %q, which is not HOST:ADDRESS", text)
		}
		m.set(host, newScalar(item.at, strings.Trim(address, "[]")))
	}
	return m, nil
}

func buildToLongForm(v *value, dir string) (*value, error) {
	if v.kind == scalar {
		m := newMapping(v.at)
		m.set("context", newScalar(v.at, v.text))
		v = m
	}
	if v.kind != mapping {
		return nil, importer.Errorf(v.at, "build must be a path or a mapping")
	}
	if args := v.get("args"); args != nil {
		converted, err := args.toMapping("=")
		if err != nil {
			return nil, err
		}
		v.set("args", converted)
	}
	context := v.get("context")
	if context == nil {
		context = newScalar(v.at, ".")
		v.set("context", context)
	}
	if !isRemoteContext(context.text) {
		context.text = absolute(dir, context.text)
	}
	return v, nil
}

// isRemoteContext reports whether a build context is the address of a repository.
func isRemoteContext(text string) bool {
	return strings.Contains(text, "://") || strings.HasPrefix(text, "git@") || strings.HasPrefix(text, "github.com/")
}

func dependsOnToLongForm(v *value) (*value, error) {
	m, err := v.toMapping("\x00")
	if err != nil {
		return nil, err
	}
	for _, name := range m.keys {
		if m.fields[name].kind == null {
			at := m.fields[name].at
			field := newMapping(at)
			field.set("condition", newScalar(at, "service_started"))
			m.fields[name] = field
		}
	}
	return m, nil
}

// volumeToLongForm converts "SOURCE:TARGET:MODE", "SOURCE:TARGET" and "TARGET".
func volumeToLongForm(v *value, dir string) (*value, error) {
	if v.kind == mapping {
		if fieldText(v, "type") == "bind" {
			if source := v.get("source"); source != nil {
				source.text = absolute(dir, source.text)
			}
		}
		return v, nil
	}
	parts := strings.SplitN(v.text, ":", 3)
	m := newMapping(v.at)
	set := func(key, text string) { m.set(key, newScalar(v.at, text)) }
	if len(parts) == 1 {
		set("type", "volume")
		set("target", parts[0])
		return m, nil
	}
	source := parts[0]
	if strings.HasPrefix(source, ".") || strings.HasPrefix(source, "/") || strings.HasPrefix(source, "~") {
		set("type", "bind")
		if source == "~" {
			source = "~/"
		}
		source = absolute(dir, filepath.ToSlash(source))
		set("create", "true")
	} else {
		set("type", "volume")
	}
	set("source", source)
	set("target", parts[1])
	if len(parts) == 3 {
		set("mode", parts[2])
	}
	return m, nil
}
