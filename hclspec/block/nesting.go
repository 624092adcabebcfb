package block

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// checkConfigNesting rejects a config whose decoding would overflow the stack, and reports whether
// any string in it may refer to a variable.
func checkConfigNesting(config []byte) (refers bool, diags hcl.Diagnostics) {
	if diags := nesting.CheckJSON(config, "config"); diags.HasErrors() {
		return false, diags
	}
	dec := json.NewDecoder(bytes.NewReader(config))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return refers, nil // err is io.EOF at the end, or a syntax error, which the decoder reports
		}
		text, ok := token.(string)
		if !ok || !strings.Contains(text, "${") && !strings.Contains(text, "%{") {
			continue
		}
		refers = true
		if diags := nesting.CheckTemplate([]byte(text), "config", hcl.InitialPos); diags.HasErrors() {
			return false, diags
		}
	}
}
