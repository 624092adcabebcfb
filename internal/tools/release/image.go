package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// imageFiles returns the files of the container image. Its only program is nomad-lite, which finds the names of root
// and a directory for temporary files.
func imageFiles(t texts, program []byte) []file {
	return []file{
		{path: "usr/bin/nomad-lite", mode: 0o755, content: program},
		{path: configDir + "/agent.hcl", mode: 0o644, content: t.agentConfig},
		{path: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/usr/bin/nomad-lite\nnobody:x:65534:65534:nobody:/:/usr/bin/nomad-lite\n")},
		{path: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{path: "usr/share/doc/nomad-lite/copyright", mode: 0o644, content: t.licence},
		{path: "root", mode: fs.ModeDir | 0o700},
		{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{path: "var/lib/nomad-lite", mode: fs.ModeDir | 0o700},
	}
}

// imageConfig is the configuration of an image, as Docker's archives and the OCI image specification have it.
type imageConfig struct {
	Architecture string    `json:"architecture"`
	Created      time.Time `json:"created"`
	OS           string    `json:"os"`
	Config       struct {
		Entrypoint []string
		Cmd        []string
		Env        []string
		Labels     map[string]string
		StopSignal string
		Volumes    map[string]struct{}
		WorkingDir string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []imageHistory `json:"history"`
}

type imageHistory struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// imageManifest is an entry of manifest.json in an archive of docker save.
type imageManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeImage writes an image of the agent as an archive in the format of docker save, which docker load and podman load
// read.
func writeImage(path string, o options, arch string, t texts, program []byte) error {
	var layer bytes.Buffer
	if err := writeTar(&layer, imageFiles(t, program), o.time); err != nil {
		return err
	}
	layerSum := sha256Hex(layer.Bytes())
	c := imageConfig{Architecture: arch, Created: o.time, OS: "linux", History: []imageHistory{{Created: o.time, CreatedBy: "internal/tools/release"}}}
	c.Config.Entrypoint = []string{"/usr/bin/nomad-lite"}
	c.Config.Cmd = []string{"agent", "-config", "/" + configDir}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Config.Labels = map[string]string{
		"org.opencontainers.image.title": "nomad-lite", "org.opencontainers.image.version": o.version, "org.opencontainers.image.revision": o.revision,
		"org.opencontainers.image.source": projectURL, "org.opencontainers.image.licenses": licenceID,
	}
	c.Config.StopSignal = "SIGINT"
	c.Config.Volumes = map[string]struct{}{"/var/lib/nomad-lite": {}}
	c.Config.WorkingDir = "/"
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + layerSum}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	m := imageManifest{Config: sha256Hex(config) + ".json", RepoTags: []string{fmt.Sprintf("nomad-lite:%s-%s", o.version, arch)}, Layers: []string{layerSum + ".tar"}}
	manifest, err := json.Marshal([]imageManifest{m})
	if err != nil {
		return err
	}
	// Podman 4 does not load a compressed archive.
	return writeFile(path, func(w io.Writer) error {
		return writeTar(w, []file{
			{path: "manifest.json", mode: 0o644, content: manifest},
			{path: m.Config, mode: 0o644, content: config},
			{path: m.Layers[0], mode: 0o644, content: layer.Bytes()},
		}, o.time)
	})
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
