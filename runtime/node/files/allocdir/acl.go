package allocdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// The POSIX ACL of a file is the extended attribute aclName. linux/posix_acl_xattr.h
// defines its format: a version, then entries in the order of their tags.
const (
	aclName    = "system.posix_acl_access"
	aclVersion = 2

	aclTagOwner = 0x01 // ACL_USER_OBJ
	aclTagUser  = 0x02 // ACL_USER
	aclTagGroup = 0x04 // ACL_GROUP_OBJ
	aclTagMask  = 0x10 // ACL_MASK
	aclTagOther = 0x20 // ACL_OTHER

	aclHeaderSize  = 4
	aclEntrySize   = 8
	aclUndefinedID = 1<<32 - 1
)

// The permissions of an ACL entry.
const (
	aclTraverse = 1 // right to open files in a directory by name
	aclRWX      = 7
)

// encodeACL returns an ACL that gives the owner of a directory full access, each of the
// users the given rights, and no other account any access.
func encodeACL(users []uint32, rights uint16) []byte {
	b := make([]byte, 0, aclHeaderSize+aclEntrySize*(len(users)+4))
	b = binary.LittleEndian.AppendUint32(b, aclVersion)
	entry := func(tag, rights uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, rights)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	entry(aclTagOwner, aclRWX, aclUndefinedID)
	for _, uid := range users {
		entry(aclTagUser, rights, uid)
	}
	entry(aclTagGroup, 0, aclUndefinedID)
	entry(aclTagMask, rights, aclUndefinedID)
	entry(aclTagOther, 0, aclUndefinedID)
	return b
}

// decodeACL returns the users that an ACL names and gives access to a directory, in
// ascending order.
func decodeACL(b []byte) ([]uint32, error) {
	if len(b) < aclHeaderSize || (len(b)-aclHeaderSize)%aclEntrySize != 0 {
		return nil, fmt.Errorf("ACL of %d bytes", len(b))
	}
	if v := binary.LittleEndian.Uint32(b); v != aclVersion {
		return nil, fmt.Errorf("ACL of version %d", v)
	}
	var users []uint32
	for b = b[aclHeaderSize:]; len(b) > 0; b = b[aclEntrySize:] {
		tag, rights, id := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])
		if tag == aclTagUser && rights&aclTraverse != 0 {
			users = append(users, id)
		}
	}
	slices.Sort(users)
	return slices.Compact(users), nil
}

// setACL gives the owner of the directory full access, each of the users the given
// rights, and no other account any access. It also sets the mode of the directory
// except the sticky bit.
func (h *dirHandle) setACL(users []uint32, rights uint16) error {
	return h.wrapError("set ACL of", unix.Setxattr(h.procPath(), aclName, encodeACL(users, rights), 0))
}

// readACLUsers returns the users that the ACL of the directory admits; none if the
// directory has no ACL.
func (h *dirHandle) readACLUsers() ([]uint32, error) {
	const maxXattrSize = 64 << 10 // XATTR_SIZE_MAX
	for size := 512; ; size = maxXattrSize {
		b := make([]byte, size)
		n, err := unix.Getxattr(h.procPath(), aclName, b)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case errors.Is(err, unix.ERANGE) && size < maxXattrSize:
			continue
		case err != nil:
			return nil, h.wrapError("read ACL of", err)
		}
		users, err := decodeACL(b[:n])
		return users, h.wrapError("read ACL of", err)
	}
}

// dropACL removes the ACL of the directory. It reports whether there was one.
func (h *dirHandle) dropACL() (bool, error) {
	// Some file systems return an error for the removal of a missing ACL.
	_, err := unix.Getxattr(h.procPath(), aclName, nil)
	if err == nil {
		err = unix.Removexattr(h.procPath(), aclName)
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, h.wrapError("remove ACL of", err)
}
