// What every Vulkan layer here does: it finds its place in the chain of one instance and one device,
// which is all that the processes make it is for, and hands the loader its functions.
//
// A file that includes this defines `ours`, and has its functions of these names in it:
// vkGetInstanceProcAddr (instance_proc), vkGetDeviceProcAddr (device_proc), vkCreateInstance and
// vkCreateDevice, which begin with `create_instance_below` and `enter_device`.
//
// Source: Vulkan-Loader, LoaderLayerInterface.md (interface version 2).
#include <stddef.h>
#include <string.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

// Functions of the instance are looked up when it is made: later the same look-up would lead back
// to the layer.
static struct {
    VkInstance instance;
    PFN_vkGetInstanceProcAddr instance_proc;
    PFN_vkGetDeviceProcAddr device_proc;
} below;

#define INSTANCE_BELOW(name) ((PFN_##name)below.instance_proc(below.instance, #name))

// The function of the layer that has a name of Vulkan's, or NULL.
static PFN_vkVoidFunction ours(const char *name);

static VkResult create_instance_below(const VkInstanceCreateInfo *info,
                                      const VkAllocationCallbacks *allocator, VkInstance *made) {
    const VkLayerInstanceCreateInfo *link = info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO ||
                    link->function != VK_LAYER_LINK_INFO))
        link = link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    below.instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    ((VkLayerInstanceCreateInfo *)link)->u.pLayerInfo = link->u.pLayerInfo->pNext;
    below.instance = VK_NULL_HANDLE;
    VkResult result = INSTANCE_BELOW(vkCreateInstance)(info, allocator, made);
    if (result == VK_SUCCESS) below.instance = *made;
    return result;
}

// Fails where the loader gave no link.
static VkResult enter_device(const VkDeviceCreateInfo *info) {
    const VkLayerDeviceCreateInfo *link = info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO ||
                    link->function != VK_LAYER_LINK_INFO))
        link = link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    below.device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    ((VkLayerDeviceCreateInfo *)link)->u.pLayerInfo = link->u.pLayerInfo->pNext;
    return VK_SUCCESS;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name) {
    PFN_vkVoidFunction found = ours(name);
    return found ? found : below.device_proc ? below.device_proc(device, name) : NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance,
                                                              const char *name) {
    PFN_vkVoidFunction found = ours(name);
    return found ? found : below.instance_proc ? below.instance_proc(instance, name) : NULL;
}

__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version) {
    if (version->loaderLayerInterfaceVersion > 2) version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = instance_proc;
    version->pfnGetDeviceProcAddr = device_proc;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
