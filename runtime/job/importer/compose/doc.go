// Package compose converts files of Docker Compose into a job of the driver docker.
//
// It reads the files, those that they include and extend, and their environment files, as
// docker compose does, and starts nothing. DESIGN.md has the reason why the loader of compose itself is not used, and how the
// services of a file become tasks.
package compose
