/* Pages opened from the disk may not start workers: there the search runs in a hidden frame. */
if (location.protocol === 'file:') {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent('message', { data }))
      this.postMessage = data => this.loaded.then(
        () => inner.dispatchEvent(new MessageEvent('message', { data })))
      this.loaded = new Promise((resolve, reject) => {
        const script = inner.document.createElement('script')
        Object.assign(script, { src: url, onload: resolve, onerror: reject })
        inner.document.head.append(script)
      })
      this.terminate = () => frame.remove()
    }
  }
}
