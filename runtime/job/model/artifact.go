package model

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

var artifactModes = []string{"any", "file", "dir"}

func checkArtifacts(r *faultReport, artifacts []*api.TaskArtifact) {
	for i, a := range artifacts {
		at := r.nestedReport("artifact", positionText(i))
		checkArtifact(at, a)
		r.addNested(at, "Artifact %d validation failed:", i+1)
	}
}

func checkArtifact(r *faultReport, a *api.TaskArtifact) {
	if pointer.Value(a.GetterSource) == "" {
		r.addFault("source must be specified")
	}
	if mode := pointer.Value(a.GetterMode); !slices.Contains(artifactModes, mode) {
		r.addFault("invalid artifact mode %q; must be one of: any, file, dir", mode)
	}
	if isOutsideAllocDir("task", pointer.Value(a.RelativeDest)) {
		r.addFault("destination escapes allocation directory")
	}
	if sum, ok := a.GetterOptions["checksum"]; ok {
		checkArtifactChecksum(r.atPath("options"), sum)
	}
}

// checksumSizes maps checksum types to their sizes in bytes.
var checksumSizes = map[string]int{
	"md5":    md5.Size,
	"sha1":   sha1.Size,
	"sha256": sha256.Size,
	"sha512": sha512.Size,
}

// checkArtifactChecksum skips texts with references, which are resolved at run time.
func checkArtifactChecksum(r *faultReport, text string) {
	if strings.Contains(text, "${") {
		return
	}
	if strings.TrimSpace(text) == "" {
		r.addFault("checksum value cannot be empty")
		return
	}
	kind, sum, ok := strings.Cut(text, ":")
	if !ok {
		r.addFault("checksum must be given as \"type:value\"; got %q", text)
		return
	}
	size, ok := checksumSizes[kind]
	if !ok {
		r.addFault("unsupported checksum type: %s", kind)
		return
	}
	if bytes, err := hex.DecodeString(sum); err != nil {
		r.addFault("invalid checksum: %v", err)
	} else if len(bytes) != size {
		r.addFault("invalid %s checksum: %s", kind, sum)
	}
}
