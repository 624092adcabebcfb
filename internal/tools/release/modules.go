package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// writeModuleList writes the modules that are linked into a program as a bill of materials in the format CycloneDX. The
// source is the record of the Go tool in the program itself.
func writeModuleList(path, program string, o options) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	hash := sha256Hex(content)
	subject := cyclonedx.Component{
		BOMRef: info.Main.Path, Type: cyclonedx.ComponentTypeApplication, Name: "nomad-lite", Version: o.version,
		PackageURL: packageURL(info.Main.Path, "v"+o.version),
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hash}},
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: licenceID}}},
	}
	components := []cyclonedx.Component{{BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: packageURL("std", info.GoVersion)}}
	refs := []string{"std"}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			return fmt.Errorf("module %s is replaced in go.mod: a release uses published modules only", dep.Path)
		}
		components = append(components, cyclonedx.Component{
			BOMRef: dep.Path, Type: cyclonedx.ComponentTypeLibrary, Name: dep.Path, Version: dep.Version, PackageURL: packageURL(dep.Path, dep.Version),
		})
		refs = append(refs, dep.Path)
	}
	bom := cyclonedx.NewBOM()
	// The number must be unique for each program, and the same for each build of it.
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(hash)).URN()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: o.time.Format(time.RFC3339), Component: &subject}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: subject.BOMRef, Dependencies: &refs}}
	return writeFile(path, func(w io.Writer) error {
		return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	})
}

func packageURL(module, version string) string { return "pkg:golang/" + module + "@" + version }
