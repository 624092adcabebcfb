package volume

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// volumeSpecification is the content of an HCL or JSON file that describes a volume.
type volumeSpecification struct {
	Type         string           `hcl:"type,optional"`
	ID           string           `hcl:"id,optional"`
	Name         string           `hcl:"name"`
	Namespace    string           `hcl:"namespace,optional"`
	PluginID     string           `hcl:"plugin_id,optional"`
	NodePool     string           `hcl:"node_pool,optional"`
	NodeID       string           `hcl:"node_id,optional"`
	HostPath     string           `hcl:"host_path,optional"`
	Capacity     cty.Value        `hcl:"capacity,optional"`
	CapacityMin  cty.Value        `hcl:"capacity_min,optional"`
	CapacityMax  cty.Value        `hcl:"capacity_max,optional"`
	Capabilities []capabilitySpec `hcl:"capability,block"`
	Constraints  []constraintSpec `hcl:"constraint,block"`
	Parameters   []parameterSpec  `hcl:"parameters,block"`
}

type capabilitySpec struct {
	AccessMode     string `hcl:"access_mode,optional"`
	AttachmentMode string `hcl:"attachment_mode,optional"`
}

type constraintSpec struct {
	Attribute string `hcl:"attribute,optional"`
	Operator  string `hcl:"operator,optional"`
	Value     string `hcl:"value,optional"`
}

type parameterSpec struct {
	Body hcl.Body `hcl:",remain"`
}

// readSpecification reads a volume specification from a file, or from standard input if pathOrStdin is "-".
func readSpecification(pathOrStdin string, s *cli.Streams) (*api.HostVolume, error) {
	var text []byte
	var err error
	if pathOrStdin == "-" {
		pathOrStdin = "stdin"
		text, err = io.ReadAll(s.In)
	} else {
		text, err = os.ReadFile(pathOrStdin)
	}
	if err != nil {
		return nil, err
	}
	return parseSpecification(pathOrStdin, text)
}

// parseSpecification parses a volume specification in HCL, or in JSON if the text starts with a brace.
func parseSpecification(pathForErrors string, text []byte) (*api.HostVolume, error) {
	parser := hclparse.NewParser()
	var file *hcl.File
	var diags hcl.Diagnostics
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		file, diags = parser.ParseJSON(text, pathForErrors)
	} else {
		// The values of constraints contain interpolations such as ${attr.kernel.name}, which the agent evaluates, so
		// HCL must not.
		file, diags = parser.ParseHCL(bytes.ReplaceAll(text, []byte("${"), []byte("$${")), pathForErrors)
	}
	if diags.HasErrors() {
		return nil, diags
	}
	var spec volumeSpecification
	if diags := gohcl.DecodeBody(file.Body, nil, &spec); diags.HasErrors() {
		return nil, diags
	}
	return spec.toHostVolume(pathForErrors)
}

func (s *volumeSpecification) toHostVolume(pathForErrors string) (*api.HostVolume, error) {
	switch s.Type {
	case "host":
	case "csi":
		return nil, fmt.Errorf(`%s: a CSI volume is not supported: storage plugins need a cluster. Write type = "host"`, pathForErrors)
	default:
		return nil, fmt.Errorf(`%s: type is %q: write type = "host"`, pathForErrors, s.Type)
	}
	v := &api.HostVolume{
		ID: s.ID, Name: s.Name, Namespace: s.Namespace, PluginID: s.PluginID, NodePool: s.NodePool, NodeID: s.NodeID, HostPath: s.HostPath,
	}
	for _, c := range []struct {
		name  string
		value cty.Value
		field *int64
	}{
		{"capacity", s.Capacity, &v.CapacityBytes},
		{"capacity_min", s.CapacityMin, &v.RequestedCapacityMinBytes},
		{"capacity_max", s.CapacityMax, &v.RequestedCapacityMaxBytes},
	} {
		var err error
		if *c.field, err = parseCapacityBytes(c.value); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", pathForErrors, c.name, err)
		}
	}
	for _, c := range s.Capabilities {
		v.RequestedCapabilities = append(v.RequestedCapabilities, &api.HostVolumeCapability{
			AccessMode: api.HostVolumeAccessMode(c.AccessMode), AttachmentMode: api.HostVolumeAttachmentMode(c.AttachmentMode),
		})
	}
	for _, c := range s.Constraints {
		if c.Operator == "" {
			c.Operator = "="
		}
		v.Constraints = append(v.Constraints, api.NewConstraint(c.Attribute, c.Operator, c.Value))
	}
	for _, p := range s.Parameters {
		attributes, diags := p.Body.JustAttributes()
		if diags.HasErrors() {
			return nil, diags
		}
		if v.Parameters == nil {
			v.Parameters = make(map[string]string)
		}
		for name, attribute := range attributes {
			var text string
			if diags := gohcl.DecodeExpression(attribute.Expr, nil, &text); diags.HasErrors() {
				return nil, diags
			}
			v.Parameters[name] = text
		}
	}
	return v, nil
}

// unitBytes maps the unit of a capacity, in upper case, to its number of bytes.
var unitBytes = map[string]float64{
	"": 1, "B": 1, "K": 1e3, "KB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12, "TB": 1e12, "P": 1e15, "PB": 1e15,
	"KI": 1 << 10, "KIB": 1 << 10, "MI": 1 << 20, "MIB": 1 << 20, "GI": 1 << 30, "GIB": 1 << 30, "TI": 1 << 40, "TIB": 1 << 40, "PI": 1 << 50, "PIB": 1 << 50,
}

// parseCapacityBytes returns the number of bytes of a capacity, which is a number or a text like "10GiB". A missing
// value is 0.
func parseCapacityBytes(value cty.Value) (int64, error) {
	if value == cty.NilVal || value.IsNull() {
		return 0, nil
	}
	text, err := convert.Convert(value, cty.String)
	if err != nil {
		return 0, err
	}
	errInvalid := fmt.Errorf("%q is not a capacity such as 1000000 or \"10GiB\"", text.AsString())
	number := strings.TrimSpace(text.AsString())
	end := strings.IndexFunc(number, func(c rune) bool { return (c < '0' || c > '9') && c != '.' })
	if end < 0 {
		end = len(number)
	}
	factor, known := unitBytes[strings.ToUpper(strings.TrimSpace(number[end:]))]
	amount, err := strconv.ParseFloat(number[:end], 64)
	if bytes := amount * factor; err == nil && known && bytes < math.MaxInt64 {
		return int64(bytes), nil
	}
	return 0, errInvalid
}
