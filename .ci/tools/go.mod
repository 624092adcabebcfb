module github.com/nomad-lite/nomad-lite/ci/tools

go 1.26.0
