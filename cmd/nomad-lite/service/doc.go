// Package service has the commands below "nomad-lite service".
package service
