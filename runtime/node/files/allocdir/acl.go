package allocdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A POSIX ACL is the extended attribute aclXattrName. linux/posix_acl_xattr.h defines its format: a
// version, then entries ordered by tag.
const (
	aclXattrName = "system.posix_acl_access"
	aclVersion   = 2

	aclTagOwner = 0x01 // ACL_USER_OBJ
	aclTagUser  = 0x02 // ACL_USER
	aclTagGroup = 0x04 // ACL_GROUP_OBJ
	aclTagMask  = 0x10 // ACL_MASK
	aclTagOther = 0x20 // ACL_OTHER

	aclHeaderSize  = 4
	aclEntrySize   = 8
	aclUndefinedID = 1<<32 - 1
)

// ACL entry permissions.
const (
	aclTraverse = 1 // right to open files in a directory by name
	aclRWX      = 7
)

// encodeOwnerAndUsersACL returns the attribute value for an ACL that gives the directory's owner full
// access, each user the given rights, and no other account any access.
func encodeOwnerAndUsersACL(uids []uint32, rights uint16) []byte {
	b := make([]byte, 0, aclHeaderSize+aclEntrySize*(len(uids)+4))
	b = binary.LittleEndian.AppendUint32(b, aclVersion)
	entry := func(tag, rights uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, rights)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	entry(aclTagOwner, aclRWX, aclUndefinedID)
	for _, uid := range uids {
		entry(aclTagUser, rights, uid)
	}
	entry(aclTagGroup, 0, aclUndefinedID)
	entry(aclTagMask, rights, aclUndefinedID)
	entry(aclTagOther, 0, aclUndefinedID)
	return b
}

// decodeTraverseUIDs returns the users with their own entry and the right aclTraverse, in ascending
// order.
func decodeTraverseUIDs(b []byte) (uids []uint32, err error) {
	if len(b) < aclHeaderSize || (len(b)-aclHeaderSize)%aclEntrySize != 0 {
		return nil, fmt.Errorf("ACL of %d bytes", len(b))
	}
	if v := binary.LittleEndian.Uint32(b); v != aclVersion {
		return nil, fmt.Errorf("ACL of version %d", v)
	}
	for b = b[aclHeaderSize:]; len(b) > 0; b = b[aclEntrySize:] {
		tag, rights, id := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])
		if tag == aclTagUser && rights&aclTraverse != 0 {
			uids = append(uids, id)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// setACL gives the directory's owner full access, each user the given rights, and no other account any
// access. It also sets the directory's mode except the sticky bit.
func (h *dirHandle) setACL(uids []uint32, rights uint16) error {
	return h.wrapDirError("set ACL of", unix.Setxattr(h.procPath(), aclXattrName, encodeOwnerAndUsersACL(uids, rights), 0))
}

// readTraverseUIDs returns the users that decodeTraverseUIDs finds in the directory's ACL; none if the
// directory has no ACL.
func (h *dirHandle) readTraverseUIDs() ([]uint32, error) {
	const maxXattrSize = 64 << 10 // XATTR_SIZE_MAX
	for size := 512; ; size = maxXattrSize {
		b := make([]byte, size)
		n, err := unix.Getxattr(h.procPath(), aclXattrName, b)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case errors.Is(err, unix.ERANGE) && size < maxXattrSize:
			continue
		case err != nil:
			return nil, h.wrapDirError("read ACL of", err)
		}
		uids, err := decodeTraverseUIDs(b[:n])
		return uids, h.wrapDirError("read ACL of", err)
	}
}

// dropACL removes the directory's ACL. It reports whether there was one.
func (h *dirHandle) dropACL() (existed bool, err error) {
	// Some file systems return an error if the ACL to remove does not exist.
	_, err = unix.Getxattr(h.procPath(), aclXattrName, nil)
	if err == nil {
		err = unix.Removexattr(h.procPath(), aclXattrName)
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, h.wrapDirError("remove ACL of", err)
}
