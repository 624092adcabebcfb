// Package fingerprint detects the machine's properties: the attributes that job files refer to, and
// the resources for placement.
//
// It reads them once, quickly, and never fails: unknown values are omitted and listed in Degradations.
// It sends no network requests. Driver attributes come from the drivers.
package fingerprint
