#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses WordPress as a person would, with a browser's cookies and forms: installation, permalinks, a post, a picture.

usage: yucan_wordpress.py PORT      (prints a line for each step, and exits with a message at the first step that fails)
"""
import re
import struct
import sys
import xmlrpc.client
import zlib

from yucan_site import Site, must

site = Site(sys.argv[1])
base, fetch = site.base, site.fetch


def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))


status, page, _, _ = fetch('/wp-admin/install.php?step=2', {
    'weblog_title': 'Beamway', 'user_name': 'admin', 'admin_password': 'Secret-1234', 'admin_password2': 'Secret-1234',
    'pw_weak': 'on', 'admin_email': 'a@example.com', 'blog_public': '0', 'Submit': 'Install'})
must(status == 200 and b'wp-login.php' in page and b'Success' in page, 'installed', page)

fetch('/wp-login.php')
status, page, place, _ = fetch('/wp-login.php', {'log': 'admin', 'pwd': 'Secret-1234', 'wp-submit': 'Log In', 'testcookie': '1',
                                                'redirect_to': base + '/wp-admin/'})
must(status == 200 and '/wp-admin/' in place, 'logged in', page)

_, page, _, _ = fetch('/wp-admin/options-permalink.php')
nonce = re.search(rb'name="_wpnonce" value="([0-9a-f]+)"', page)
must(nonce is not None, 'the form for permalinks is there', page)
fetch('/wp-admin/options-permalink.php', {'_wpnonce': nonce.group(1).decode(), '_wp_http_referer': '/wp-admin/options-permalink.php',
                                          'selection': '/%year%/%monthnum%/%day%/%postname%/',
                                          'permalink_structure': '/%year%/%monthnum%/%day%/%postname%/', 'submit': 'Save'})

remote = xmlrpc.client.ServerProxy(base + '/xmlrpc.php')
post = remote.wp.newPost(1, 'admin', 'Secret-1234', {'post_title': 'Moved to yucan', 'post_content': 'It <b>works</b>: caf\u00e9.',
                                                    'post_status': 'publish'})
link = remote.wp.getPost(1, 'admin', 'Secret-1234', post, ['link'])['link']
must(re.search(r'/\d{4}/\d\d/\d\d/moved-to-yucan/$', link) is not None, 'published')
status, page, place, _ = fetch(link)
must(status == 200 and place == link and 'It <b>works</b>: caf\u00e9.'.encode() in page, 'opened by its permalink', page)
status, page, _, _ = fetch('/2009/07/27/nothing-of-that-name/')
must(status == 404 and b'Beamway' in page, 'a permalink of nothing is a page of the blog with 404', page)
status, page, _, _ = fetch('/?s=yucan')
must(status == 200 and b'Moved to yucan' in page, 'found by searching', page)

rows = b''.join(b'\0' + bytes((x * y) % 256 for x in range(300)) for y in range(300))
picture = (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 300, 300, 8, 0, 0, 0, 0))
           + chunk(b'IDAT', zlib.compress(rows, 0)) + chunk(b'IEND', b''))
_, page, _, _ = fetch('/wp-admin/media-new.php')
nonce = re.search(rb'name="_wpnonce" value="([0-9a-f]+)"', page) or re.search(rb'"_wpnonce":"([0-9a-f]+)"', page)
must(nonce is not None, 'the form for uploads is there', page)
_, page, _, _ = site.upload('/wp-admin/async-upload.php',
                            {'name': 'p.png', 'action': 'upload-attachment', '_wpnonce': nonce.group(1).decode()},
                            'async-upload', 'p.png', 'image/png', picture)
found = re.search(rb'"url":"([^"]+p[^"]*\.png)"', page)
must(b'"success":true' in page and found is not None, 'a picture uploaded', page)
status, data, _, headers = fetch(found.group(1).decode().replace('\\/', '/'))
must(status == 200 and data == picture and headers['content-type'] == 'image/png', 'the picture is served as it was',
     ('%s %d ' % (found.group(1), status)).encode() + data)
status, data, _, headers = fetch('/wp-includes/css/dashicons.min.css')
must(status == 200 and headers['content-type'].startswith('text/css'), 'a file of the package is served')
