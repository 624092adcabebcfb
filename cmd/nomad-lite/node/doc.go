// Package node has the commands below "nomad-lite node".
package node
