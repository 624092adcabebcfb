// Package jobs tests the jobs of an agent over its HTTP API: realistic jobs, jobs and requests whose results on Nomad are known, and
// what an agent exports of them.
package jobs
