// Package shareddir finds the samples of Nomad that tests compare with. They are not part of this repository.
package shareddir
