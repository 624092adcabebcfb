// Package acl has the commands below "nomad-lite acl".
package acl
