package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestHostVolumes(t *testing.T) {
	want := map[string]*api.HostVolumeInfo{"a b": {Path: "/srv/a"}, "c": {Path: "/srv/c", ReadOnly: true}}
	for name, src := range map[string]string{
		"n.hcl":  "client {\n  host_volume \"a b\" { path = \"/srv/x/../a/\" }\n  host_volume \"c\" {\n    path = \"/srv/c\"\n    read_only = true\n  }\n}\n",
		"n.json": `{"client": {"host_volume": {"a b": {"path": "/srv/a"}, "c": [{"path": "/srv/c", "read_only": true}]}}}`,
	} {
		var c Config
		if diags := c.Parse(name, []byte(src)); len(diags) > 0 || !reflect.DeepEqual(c.Node.HostVolumes, want) {
			t.Errorf("%s: %v, %v", name, c.Node.HostVolumes, diags)
		}
	}
	for src, want := range map[string]string{
		`host_volume "a" { path = "srv" }`:                   `host_volume "a": path is "srv": it must be an absolute path`,
		`host_volume "a" {}`:                                 `host_volume "a": path is "": it must be an absolute path`,
		`host_volume "a" { pfad = "/" }`:                     `host_volume "a": pfad: is not a setting of a host_volume block`,
		"host_volume \"a\" {\npath = \"/\"\nread_only=[]\n}": `host_volume "a": read_only: must be true or false`,
		`host_volume { path = "/" }`:                         `host_volume "path": must be a block`,
		`host_volume = "/"`:                                  `host_volume: must be a block with a name`,
	} {
		var c Config
		if diags := c.Parse("n.hcl", []byte("client {\n"+src+"\n}\n")); len(diags) != 1 || !strings.Contains(diags[0].Summary, want) {
			t.Errorf("%s: %v\nwant %s", src, diags, want)
		}
	}
}
