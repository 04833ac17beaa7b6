package executor

import (
	"errors"
	"syscall"
)

// silent reports whether the target has neither closed the connection nor sent anything since it was kept.
func (c *conn) silent() bool {
	socket, ok := c.socket.(syscall.Conn)
	if !ok {
		return true // it is not one of this machine's sockets
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && silent
}
